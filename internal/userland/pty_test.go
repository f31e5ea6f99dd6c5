package userland_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
)

// console is an interactive shell on a terminal.
type console struct {
	t    *testing.T
	f    *os.File
	cmd  *exec.Cmd
	mu   sync.Mutex
	buf  strings.Builder
	seen int
	done chan struct{}
}

func openConsole(t *testing.T) *console {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "sh"))
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"PATH=" + binDir, "HOME=" + cmd.Dir, "PS1=READY> ", "TERM=xterm", "PWD=" + cmd.Dir}
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 200})
	if err != nil {
		t.Skipf("no terminal here: %v", err)
	}
	c := &console{t: t, f: f, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		b := make([]byte, 4096)
		for {
			n, err := f.Read(b)
			c.mu.Lock()
			c.buf.Write(b[:n])
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		f.Close()
		<-c.done
		_ = cmd.Wait()
	})
	c.expect("READY> ")
	return c
}

// expect waits for text after what earlier calls have found.
func (c *console) expect(text string) {
	c.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		c.mu.Lock()
		all := c.buf.String()
		c.mu.Unlock()
		if i := strings.Index(all[c.seen:], text); i >= 0 {
			c.seen += i + len(text)
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%q did not come; the terminal shows %q", text, all[c.seen:])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *console) send(text string) {
	c.t.Helper()
	if _, err := c.f.WriteString(text); err != nil {
		c.t.Fatal(err)
	}
}

// run sends a line whose output will contain want, and waits for the prompt.
func (c *console) run(line, want string) {
	c.t.Helper()
	c.send(line + "\r")
	c.expect("\r\n")
	c.expect(want)
	c.expect("READY> ")
}

func TestTerminalRunsCommands(t *testing.T) {
	c := openConsole(t)
	c.run("echo $((6*7))", "42")
	c.run("tty | sed 's,/dev/pts/.*,a terminal,'", "a terminal")
	c.run("stty size", "24 200")
	c.send("echo 'two\r")
	c.expect("> ")
	c.run("lines'", "lines")
}

func TestCtrlC(t *testing.T) {
	c := openConsole(t)
	c.send("sleep 300; echo not-reached\r")
	c.expect("not-reached\r\n") // the echo of the line
	time.Sleep(200 * time.Millisecond)
	c.send("\x03")
	c.expect("READY> ")
	c.run("echo status $?", "status 130")
	c.send("half a line\x03")
	c.expect("READY> ")
	c.run("echo alive", "alive")
	// A loop of builtins has no child to take the signal.
	c.send("while :; do :; done\r")
	c.expect("done\r\n")
	time.Sleep(100 * time.Millisecond)
	c.send("\x03")
	c.expect("READY> ")
	c.run("echo still", "still")
}

func TestJobControl(t *testing.T) {
	c := openConsole(t)
	c.send("sleep 301\r")
	c.expect("301\r\n")
	time.Sleep(200 * time.Millisecond)
	c.send("\x1a")
	c.expect("Stopped")
	c.expect("READY> ")
	c.run("jobs", "Stopped")
	c.run("bg", "sleep 301")
	c.run("jobs", "Running")
	c.run("kill %1; wait; echo killed", "killed")
	c.run("sleep 302 & echo pid $!", "pid ")
	c.send("fg\r")
	c.expect("sleep 302")
	time.Sleep(200 * time.Millisecond)
	c.send("\x03")
	c.expect("READY> ")
	// Each job is a group of its own, which has the terminal while it runs.
	c.run("sh -c 'set -- $(ps -o pgid=,pid= -p $$); [ $1 = $2 ] && echo leader'", "leader")
	c.run("cat /etc/passwd | head -1 | cut -d: -f1", "root")
}

func TestLineEditing(t *testing.T) {
	c := openConsole(t)
	c.run("echo one", "one")
	c.run("\x1b[A\x7f\x7f\x7ftwo", "two")       // history, backspace
	c.run("cho x\x01e\x05y", "xy")              // start and end of line
	c.run("echo kept cut\x17word", "kept word") // delete a word
	c.run(": > uniquename", "")
	c.run("echo uniq\tz", "uniquename z") // complete a file name
}

func TestCtrlDExits(t *testing.T) {
	c := openConsole(t)
	c.run("(exit 7)", "")
	c.send("\x04")
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the shell did not end")
	}
	if err := c.cmd.Wait(); c.cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("exit status: %v, want 7", err)
	}
}
