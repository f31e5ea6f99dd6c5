package helper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"

	"github.com/hutch-sandbox/hutch/box"
)

// IDs is how users of a box become users of the host.
type IDs struct {
	user       bool // a user namespace is needed
	uidStart   int
	uidCount   int
	gidStart   int
	gidCount   int
	newuidmap  string
	newgidmap  string
	whyNoRange string
}

// LookupIDs finds out how this user can map ids: root needs no map, an
// ordinary user has a range from /etc/subuid and /etc/subgid, or only the one
// id that is his own.
func LookupIDs() (IDs, error) {
	if os.Geteuid() == 0 {
		return IDs{}, nil
	}
	ids := IDs{user: true}
	name := ""
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		name = u.Username
	}
	var err error
	if ids.newuidmap, err = exec.LookPath("newuidmap"); err != nil {
		ids.whyNoRange = "newuidmap is missing"
		return ids, nil
	}
	if ids.newgidmap, err = exec.LookPath("newgidmap"); err != nil {
		ids.whyNoRange = "newgidmap is missing"
		return ids, nil
	}
	ids.uidStart, ids.uidCount = subRange("/etc/subuid", name)
	ids.gidStart, ids.gidCount = subRange("/etc/subgid", name)
	// Debian's own accounts end at 65534; a smaller range serves nobody.
	if ids.uidCount < 65535 || ids.gidCount < 65535 {
		ids.uidCount, ids.gidCount = 0, 0
		ids.whyNoRange = "no range of 65536 ids in /etc/subuid and /etc/subgid"
	}
	return ids, nil
}

// subRange reads the first range of a user from a file of name:start:count.
func subRange(file, name string) (start, count int) {
	f, err := os.Open(file)
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	uid := strconv.Itoa(os.Geteuid())
	for s := bufio.NewScanner(f); s.Scan(); {
		parts := strings.Split(strings.TrimSpace(s.Text()), ":")
		if len(parts) != 3 || (parts[0] != name && parts[0] != uid) {
			continue
		}
		a, err1 := strconv.Atoi(parts[1])
		n, err2 := strconv.Atoi(parts[2])
		if err1 == nil && err2 == nil && n > count {
			start, count = a, n
		}
	}
	return start, count
}

func (ids IDs) ranges() bool { return ids.uidCount > 0 }

// All reports whether a box may have all users of its image.
func (ids IDs) All() bool { return !ids.user || ids.ranges() }

// WhyNot says why All is false.
func (ids IDs) WhyNot() string { return ids.whyNoRange }

// Fix is the command that gives an ordinary user a range.
func (ids IDs) Fix() string {
	if ids.newuidmap == "" || ids.newgidmap == "" {
		return "sudo apt-get install uidmap"
	}
	return "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER"
}

// write gives the process pid its id maps.
func (ids IDs) write(ctx context.Context, pid int) error {
	run := func(prog string, own, start, count int) error {
		out, err := exec.CommandContext(ctx, prog, strconv.Itoa(pid),
			"0", strconv.Itoa(own), "1",
			"1", strconv.Itoa(start), strconv.Itoa(count)).CombinedOutput()
		if err != nil {
			return &box.Error{Kind: box.Unsupported, Op: "map user ids", Err: fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out))),
				Hint: "check that the ranges in /etc/subuid and /etc/subgid are valid"}
		}
		return nil
	}
	return errors.Join(
		run(ids.newuidmap, os.Geteuid(), ids.uidStart, ids.uidCount),
		run(ids.newgidmap, os.Getegid(), ids.gidStart, ids.gidCount))
}
