package tool

import (
	"os"
	"strconv"
	"strings"
)

// Account is a line of /etc/passwd or /etc/group.
type Account struct {
	Name    string
	ID      int
	Group   int      // primary group, of a user
	Home    string   // of a user
	Shell   string   // of a user
	Members []string // of a group
}

// Accounts reads /etc/passwd or /etc/group. Lines that make no sense are
// skipped, and a missing file is an empty one.
func Accounts(file string) []Account {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var out []Account
	for _, l := range strings.Split(string(b), "\n") {
		f := strings.Split(l, ":")
		if len(f) < 3 {
			continue
		}
		id, err := strconv.Atoi(f[2])
		if err != nil {
			continue
		}
		a := Account{Name: f[0], ID: id}
		if len(f) >= 7 {
			a.Group, _ = strconv.Atoi(f[3])
			a.Home, a.Shell = f[5], f[6]
		} else if len(f) == 4 && f[3] != "" {
			a.Members = strings.Split(f[3], ",")
		}
		out = append(out, a)
	}
	return out
}
