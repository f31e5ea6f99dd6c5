// Package userland is the userland of the builtin image: every utility, and
// the table that finds one by name.
//
// The utilities live in packages by what they work on: shell, files, text,
// proc (processes and the system) and archive, with basic for those the shell
// runs itself, tool for what all share and regex for POSIX expressions.
package userland

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hutch-sandbox/hutch/internal/userland/basic"
	"github.com/hutch-sandbox/hutch/internal/userland/shell"
	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// Main runs the utility named by the base name of args[0] or, when that is
// the name of the program itself, by args[1]. It returns the exit status.
// Utilities use the working directory, environment and signals of the
// process; sh also its descriptors 0, 1 and 2.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		args = []string{"sh"}
	}
	shell.InheritIgnored()
	if !signal.Ignored(syscall.SIGQUIT) {
		dieOf(syscall.SIGQUIT)
	}
	name := strings.TrimPrefix(filepath.Base(args[0]), "-")
	u, ok := find(name)
	if !ok {
		if len(args) < 2 || args[1] == "--help" || args[1] == "--list" {
			for _, n := range Names() {
				fmt.Fprintln(stdout, n)
			}
			return 0
		}
		args = args[1:]
		name = filepath.Base(args[0])
		if u, ok = find(name); !ok {
			fmt.Fprintf(stderr, "hutch-userland: no utility is named %q\n", name)
			return 127
		}
	}
	if name != "sh" && !signal.Ignored(syscall.SIGPIPE) {
		// The shell has traps of its own.
		dieOf(syscall.SIGPIPE)
	}
	c := &tool.Context{Name: name, Args: args[1:], Stdin: stdin, Stdout: tool.NewOutput(stdout), Stderr: stderr, Usage: u.usage}
	if strings.HasPrefix(args[0], "-") {
		c.Name = "-" + name
	}
	return tool.Run(u.run, c)
}

// dieOf makes a signal end the process as it does other programs. Go prints
// all goroutines on SIGQUIT, and ignores a SIGPIPE that somebody sends.
func dieOf(sig syscall.Signal) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, sig)
	go func() {
		<-ch
		basic.DieBySignal(sig)
	}()
}

// Names lists the utilities in sorted order.
func Names() []string {
	var l []string
	for _, u := range table() {
		l = append(l, u.name)
	}
	slices.Sort(l)
	return l
}

func find(name string) (utility, bool) {
	for _, u := range table() {
		if u.name == name {
			return u, true
		}
	}
	return utility{}, false
}

type utility struct {
	name  string
	run   tool.Func
	usage string
}
