package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box/local/embed"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// asVar names the mode in the environment of a process that runs tests as
// another user.
const asVar = "HUTCH_TEST_AS"

// guestVar and hutchVar hand on the programs that the first process prepared.
const (
	guestVar = "HUTCH_TEST_GUEST"
	hutchVar = "HUTCH_BIN"
)

// The test program is its own helper, and other programs on the same home.
func TestMain(m *testing.M) {
	embed.Init()
	if len(os.Args) > 1 {
		if program, ok := programs[os.Args[1]]; ok {
			if err := program(context.Background(), os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	code := m.Run()
	if err := stage.remove(); err != nil {
		fmt.Fprintln(os.Stderr, "clean up:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// everyone runs a test as the user that runs the tests and, when that is
// root, as two ordinary users: one with subordinate ids and one without.
func everyone(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	realengine.Need(t, "gvisor")
	if mode := os.Getenv(asVar); mode != "" {
		t.Run(mode, f)
		return
	}
	if os.Geteuid() != 0 {
		t.Run("user", f)
		return
	}
	t.Run("root", f)
	for _, mode := range []string{"ranges", "single"} {
		t.Run(mode, func(t *testing.T) { runAs(t, mode) })
	}
}

// runAs runs this test, by its name, in a process of an ordinary user.
func runAs(t *testing.T, mode string) {
	dir, err := stage.dir()
	if err != nil {
		t.Fatal(err)
	}
	account, err := stage.account(mode)
	if err != nil {
		required(t, "an ordinary user: %v", err)
	}
	program, err := stage.program("tests", "/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+part+"$")
	}
	args := []string{"-test.v", "-test.run=" + strings.Join(pattern, "/"), "-test.timeout=10m"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	home := filepath.Join(dir, "home-"+mode)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = home
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + filepath.Join(home, "tmp"), "USER=" + account.Username,
		asVar + "=" + mode, guestVar + "=" + guestProgram(t),
	}
	if bin, err := hutchProgram(); err == nil {
		if bin, err = stage.program("hutch", bin); err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, hutchVar+"="+bin)
	}
	if image := os.Getenv(imageVar); image != "" {
		cmd.Env = append(cmd.Env, imageVar+"="+image)
	}
	for _, name := range []string{"REQUIRE_ENGINES", "HUTCH_ENGINES_RAN", "HUTCH_CRASH_ROUNDS", "GOCOVERDIR", realengine.KernelsVar} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		Setsid:     true,
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// What a failed test left running has the output open.
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	switch {
	case err != nil:
		t.Errorf("as %s: %v\n%s", account.Username, err, out.Bytes())
	case bytes.Contains(out.Bytes(), []byte("--- SKIP")):
		t.Skipf("as %s:\n%s", account.Username, out.Bytes())
	case testing.Verbose():
		t.Logf("as %s:\n%s", account.Username, out.Bytes())
	}
}

// required skips a test that cannot run here, or fails it where everything
// has to run.
func required(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("REQUIRE_ENGINES") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// theStage is what the tests of one process share: a folder that every user
// may read, programs in it, and accounts.
type theStage struct {
	mu       sync.Mutex
	path     string
	made     []string // accounts to remove
	accounts map[string]*user.User
	programs map[string]string
}

// stage is set up as needed and removed by TestMain.
var stage = &theStage{accounts: map[string]*user.User{}, programs: map[string]string{}}

func (s *theStage) dir() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirLocked()
}

func (s *theStage) dirLocked() (string, error) {
	if s.path != "" {
		return s.path, nil
	}
	path, err := os.MkdirTemp("", "hutch-e2e-")
	if err != nil {
		return "", err
	}
	s.path = path
	return path, os.Chmod(path, 0o755)
}

// program puts a program where every user can read it.
func (s *theStage) program(name, from string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if path, ok := s.programs[name]; ok {
		return path, nil
	}
	dir, err := s.dirLocked()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if err := copyFile(path, from, 0o755); err != nil {
		return "", err
	}
	s.programs[name] = path
	return path, nil
}

func copyFile(to, from string, perm os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}

// account makes the account of a mode, with a home folder on the stage.
func (s *theStage) account(mode string) (*user.User, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.accounts[mode]; ok {
		return u, nil
	}
	dir, err := s.dirLocked()
	if err != nil {
		return nil, err
	}
	name := "hutchtest-" + mode
	if _, err := user.Lookup(name); err != nil {
		args := []string{"-M", "-d", "/nonexistent", "-s", "/bin/sh", "-U", name}
		if mode == "single" {
			args = append([]string{"-r"}, args...) // system accounts get no subordinate ids
		}
		if err := retry("useradd", args...); err != nil {
			return nil, err
		}
		s.made = append(s.made, name)
	}
	ranges, _ := os.ReadFile("/etc/subuid")
	has := strings.Contains("\n"+string(ranges), "\n"+name+":")
	if mode == "ranges" && !has {
		if err := retry("usermod", "--add-subuids", "701000-766535", "--add-subgids", "701000-766535", name); err != nil {
			return nil, err
		}
	}
	if mode == "single" && has {
		return nil, fmt.Errorf("account %s has subordinate ids", name)
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	home := filepath.Join(dir, "home-"+mode)
	for _, path := range []string{home, filepath.Join(home, "tmp")} {
		if err := os.Mkdir(path, 0o700); err != nil {
			return nil, err
		}
		if err := os.Chown(path, uid, gid); err != nil {
			return nil, err
		}
	}
	s.accounts[mode] = u
	return u, nil
}

// retry runs a command that fails while another process has the user
// database.
func retry(name string, args ...string) error {
	path := name
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			path = filepath.Join(dir, name)
			break
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		out, err := exec.Command(path, args...).CombinedOutput()
		if err == nil {
			return nil
		}
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
		if !bytes.Contains(out, []byte("lock")) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// remove takes away what the process made outside of its tests.
func (s *theStage) remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first error
	for _, name := range s.made {
		// It refuses while a process of the account lives, which none should.
		if err := retry("userdel", name); err != nil && first == nil {
			first = err
		}
	}
	if s.path != "" {
		if err := os.RemoveAll(s.path); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// guestProgram is the path of the program that plays the stranger in boxes.
func guestProgram(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(guestVar); path != "" {
		return path
	}
	dir, err := stage.dir()
	if err != nil {
		t.Fatal(err)
	}
	buildGuest.Do(func() {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "guest"), "./guest")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build the guest program: %v\n%s", err, out)
		}
	})
	return filepath.Join(dir, "guest")
}

var buildGuest sync.Once

// hutchProgram finds the hutch command.
func hutchProgram() (string, error) {
	candidates := []string{"../bin/hutch", "../.bin/hutch"}
	if path := os.Getenv(hutchVar); path != "" {
		candidates = []string{path}
	}
	i := slices.IndexFunc(candidates, func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
	if i < 0 {
		return "", fmt.Errorf("no hutch command: make build, or set %s", hutchVar)
	}
	return filepath.Abs(candidates[i])
}
