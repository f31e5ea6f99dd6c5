//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/guest/boot"
)

// Main is the program: it reads the boot configuration from standard input,
// prepares the box when it is PID 1, and serves until the box ends or, when it
// is not PID 1, SIGTERM or SIGINT comes. It returns the exit status.
func Main(version string) int { return MainIn(version, os.Stdin, nil) }

// MainIn is Main for a process that made the machine ready itself: it has the
// boot configuration already. Serving is called once the agent can be reached;
// nil: nobody is told.
func MainIn(version string, config io.Reader, serving func(*Agent)) int {
	logger := log.New(os.Stderr, "hutch-guest: ", log.LstdFlags|log.Lmicroseconds)
	if err := run(version, config, serving, logger); err != nil {
		logger.Print(err)
		return 1
	}
	return 0
}

func run(version string, config io.Reader, serving func(*Agent), logger *log.Logger) error {
	conf, err := boot.Read(config)
	if err != nil {
		return err
	}
	init := os.Getpid() == 1
	if init {
		prepare(conf, logger.Printf)
		if conf.Env, err = trust(conf.CA, conf.Env); err != nil {
			logger.Printf("trust the box's authority: %v", err)
		}
	}
	// Whatever the configuration came through, nothing is to be read there.
	if err := nullStdin(); err != nil {
		return err
	}
	// Commands must find SIGPIPE as it is by default, so it is not ignored but
	// taken and dropped.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx := context.Background()
	if init {
		// Nobody in the box may end it by a signal that PID 1 could catch.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
			syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPWR, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	} else {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
		defer stop()
	}
	syscall.Umask(0o022)
	a, err := New(Config{
		Token:   conf.Token,
		BootID:  conf.BootID,
		Version: version,
		Env:     conf.Env,
		Dir:     string(conf.Dir),
		User:    conf.User,
		Init:    init,
		Cgroups: init && !conf.NoCgroups,
		Pids:    conf.Pids,
		Logf:    logger.Printf,
	})
	if err != nil {
		return err
	}
	defer a.Close()
	if init {
		a.shield()
	}
	if err := a.makeDir(); err != nil {
		logger.Print(err)
	}
	l, err := listen(conf)
	if err != nil {
		return err
	}
	logger.Printf("serving on %s, commands tracked by %s", conf.Listen, a.tracker.name())
	if serving != nil {
		serving(a)
	}
	return a.Serve(ctx, l)
}

// listen opens the socket. An address may take a moment to appear on the
// box's interface.
func listen(conf boot.Config) (net.Listener, error) {
	network, address, err := conf.Address()
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		_ = os.Remove(address)
		// Only the agent's own user may connect, and only with the token.
		defer syscall.Umask(syscall.Umask(0o177))
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		l, err := net.Listen(network, address)
		if err == nil || !errors.Is(err, syscall.EADDRNOTAVAIL) || time.Now().After(deadline) {
			return l, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func nullStdin() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	defer null.Close()
	return unix.Dup3(int(null.Fd()), 0, 0)
}

// makeDir creates the box's working directory for the box's user.
func (a *Agent) makeDir() error {
	owner, err := a.owner("")
	if err != nil {
		return err
	}
	return makeDirs(a.cfg.Dir, 0o755, owner)
}

// shield keeps a real kernel from choosing the agent when memory is short. In
// gVisor the host decides, and the file has no meaning.
func (a *Agent) shield() {
	if inGVisor() {
		return
	}
	err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	a.shielded = err == nil
}
