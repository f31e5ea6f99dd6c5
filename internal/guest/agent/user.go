//go:build linux

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/moby/sys/user"

	"github.com/hutch-sandbox/hutch/box"
)

// maxAccounts bounds what is read of the box's /etc/passwd and /etc/group.
const maxAccounts = 4 << 20

// account is who a command runs as.
type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// accounts reads the box's user and group files. They are read again when
// they change, which commands in the box may do at any time.
type accounts struct {
	mu     sync.Mutex
	passwd accountFile
	group  accountFile
	users  map[uint32]string // names by id
	groups map[uint32]string
}

type accountFile struct {
	stamp [4]int64
	data  []byte
}

// load reads path when it is not as it was, and reports whether it did.
func (f *accountFile) load(path string) bool {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		changed := f.data != nil
		*f = accountFile{}
		return changed
	}
	stamp := [4]int64{int64(st.Ino), st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
	if stamp == f.stamp && f.data != nil {
		return false
	}
	// It may have become a pipe in the meantime, which must not be waited for.
	h, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		*f = accountFile{}
		return true
	}
	defer h.Close()
	if fi, err := h.Stat(); err != nil || !fi.Mode().IsRegular() {
		*f = accountFile{}
		return true
	}
	data, _ := io.ReadAll(io.LimitReader(h, maxAccounts))
	*f = accountFile{stamp: stamp, data: data}
	return true
}

func (a *accounts) refreshLocked() {
	if a.passwd.load("/etc/passwd") || a.users == nil {
		a.users = make(map[uint32]string)
		list, _ := user.ParsePasswd(bytes.NewReader(a.passwd.data))
		for _, u := range list {
			if _, dup := a.users[uint32(u.Uid)]; !dup {
				a.users[uint32(u.Uid)] = u.Name
			}
		}
	}
	if a.group.load("/etc/group") || a.groups == nil {
		a.groups = make(map[uint32]string)
		list, _ := user.ParseGroup(bytes.NewReader(a.group.data))
		for _, g := range list {
			if _, dup := a.groups[uint32(g.Gid)]; !dup {
				a.groups[uint32(g.Gid)] = g.Name
			}
		}
	}
}

// names returns the names of an owner and a group, empty where unknown.
func (a *accounts) names() (users, groups map[uint32]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refreshLocked()
	return a.users, a.groups
}

// lookup resolves "user", "uid", "user:group" or "uid:gid"; empty is root.
func (a *accounts) lookup(spec string) (account, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refreshLocked()
	name, grp, colon := strings.Cut(spec, ":")
	if name == "" || name == "root" && len(a.passwd.data) == 0 {
		spec = "0"
		if colon {
			spec += ":" + grp
		}
	}
	defaults := &user.ExecUser{Home: "/"}
	u, err := user.GetExecUser(spec, defaults, bytes.NewReader(a.passwd.data), bytes.NewReader(a.group.data))
	if err != nil {
		return account{}, &box.Error{
			Kind: box.Invalid, Op: "user", Object: spec, Err: cleanUserError(spec, err),
			Hint: "name a user and group of the box's /etc/passwd and /etc/group, or numeric ids",
		}
	}
	acc := account{uid: uint32(u.Uid), gid: uint32(u.Gid), home: u.Home}
	if u.Uid == 0 && u.Home == "/" {
		acc.home = "/root"
	}
	for _, g := range u.Sgids {
		acc.groups = append(acc.groups, uint32(g))
	}
	return acc, nil
}

func cleanUserError(spec string, err error) error {
	switch {
	case errors.Is(err, user.ErrNoPasswdEntries):
		return errors.New("no such user in the box")
	case errors.Is(err, user.ErrNoGroupEntries):
		return errors.New("no such group in the box")
	case errors.Is(err, user.ErrRange):
		return errors.New("ids must be between 0 and 2147483647")
	}
	return fmt.Errorf("bad user %s: %w", strconv.Quote(spec), err)
}

// credential is how a process becomes acc, or nil when the agent is not root
// and is that user already.
func (acc account) credential() *syscall.Credential {
	if os.Geteuid() != 0 && os.Geteuid() == int(acc.uid) && os.Getegid() == int(acc.gid) {
		return nil
	}
	return &syscall.Credential{Uid: acc.uid, Gid: acc.gid, Groups: acc.groups}
}

// mayExec reports whether the mode bits let acc execute a file.
func (acc account) mayExec(st *syscall.Stat_t) bool {
	if acc.uid == 0 {
		return st.Mode&0o111 != 0
	}
	if st.Uid == acc.uid {
		return st.Mode&0o100 != 0
	}
	if st.Gid == acc.gid {
		return st.Mode&0o010 != 0
	}
	for _, g := range acc.groups {
		if st.Gid == g {
			return st.Mode&0o010 != 0
		}
	}
	return st.Mode&0o001 != 0
}
