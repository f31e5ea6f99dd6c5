//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/boxtest"
	"github.com/hutch-sandbox/hutch/internal/guest/agent"
	"github.com/hutch-sandbox/hutch/internal/guest/boot"
	"github.com/hutch-sandbox/hutch/internal/guest/client"
)

// The test program is also the agent, and a server in the box.
const (
	roleVar   = "HUTCH_CLIENT_TEST_ROLE"
	echoAddr  = "127.0.0.1:7007"
	testToken = "0123456789abcdef"
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVar)
	os.Unsetenv(roleVar)
	switch role {
	case "agent":
		os.Exit(agent.Main("test"))
	case "echo":
		os.Exit(serveEcho())
	}
	goleak.VerifyTestMain(m)
}

func serveEcho() int {
	l, err := net.Listen("tcp", echoAddr)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			return 1
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

// rootScript makes a root of the machine's programs in a mount namespace that
// vanishes with the process, and becomes the agent there.
const rootScript = `set -e
root=$1
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir -p usr etc var run sock root tmp
chmod 1777 tmp
mount --bind /usr usr
mount --bind "$2" sock
for d in bin sbin lib lib64; do
	if [ -L "/$d" ]; then ln -s "$(readlink "/$d")" "$d"; elif [ -d "/$d" ]; then mkdir "$d"; mount --bind "/$d" "$d"; fi
done
cp /etc/passwd /etc/group etc/
[ ! -e /etc/ld.so.cache ] || cp /etc/ld.so.cache etc/
cp "$3" agent
exec chroot "$root" /agent`

// namespaces is a driver whose boxes are agents in namespaces of this machine.
// They have no disk that survives a stop, and no isolation to speak of.
type namespaces struct {
	t *testing.T

	mu    sync.Mutex
	boxes map[string]*nsBox
}

type nsBox struct {
	info  box.Info
	dir   string
	cmd   *osexec.Cmd
	tr    *http.Transport
	c     *client.Client
	ended chan struct{}
}

func newNamespaces(t *testing.T) box.Driver {
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	return &namespaces{t: t, boxes: make(map[string]*nsBox)}
}

func (d *namespaces) Create(ctx context.Context, spec box.Spec) (box.Info, error) {
	self, err := os.Executable()
	if err != nil {
		return box.Info{}, err
	}
	dir, err := os.MkdirTemp("", "hutch")
	if err != nil {
		return box.Info{}, err
	}
	for _, sub := range []string{"root", "sock"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return box.Info{}, err
		}
	}
	b := &nsBox{dir: dir, ended: make(chan struct{})}
	conf := boot.Config{
		Protocol: boot.Protocol, BootID: "test", Token: testToken, Listen: "unix:/sock/s", Hostname: "testbox",
		Dir: []byte(spec.Dir), User: spec.User,
	}
	for _, kv := range spec.Env {
		conf.Env = append(conf.Env, []byte(kv))
	}
	var in bytes.Buffer
	if err := boot.Write(&in, conf); err != nil {
		return box.Info{}, err
	}
	b.cmd = osexec.Command("/bin/sh", "-c", rootScript, "sh", filepath.Join(dir, "root"), filepath.Join(dir, "sock"), self)
	b.cmd.Env = append(os.Environ(), roleVar+"=agent")
	b.cmd.Stdin, b.cmd.Stderr = &in, d.t.Output()
	b.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
	}
	if err := b.cmd.Start(); err != nil {
		d.t.Skipf("no namespaces here: %v", err)
	}
	go func() {
		_ = b.cmd.Wait()
		close(b.ended)
	}()
	b.tr = client.Transport(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "sock", "s"))
	})
	b.c = client.New(b.tr, "http://box", client.Options{Header: http.Header{boot.TokenHeader: {testToken}}})
	for {
		if _, err = b.c.Hello(ctx); err == nil {
			break
		}
		select {
		case <-b.ended:
			return box.Info{}, fmt.Errorf("the agent ended: %w", err)
		case <-ctx.Done():
			return box.Info{}, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id := fmt.Sprintf("box%09d", len(d.boxes))
	b.info = box.Info{ID: id, Name: id, State: box.Running, Spec: spec}
	d.boxes[id] = b
	return b.info, nil
}

func (d *namespaces) Get(_ context.Context, ref string) (box.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b := d.boxes[ref]; b != nil {
		return b.info, nil
	}
	return box.Info{}, &box.Error{Kind: box.NotFound, Op: "get", Object: ref}
}

func (d *namespaces) List(context.Context, box.ListOptions) ([]box.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var infos []box.Info
	for _, b := range d.boxes {
		infos = append(infos, b.info)
	}
	return infos, nil
}

func (d *namespaces) Remove(_ context.Context, id string, _ bool) error {
	d.mu.Lock()
	b := d.boxes[id]
	delete(d.boxes, id)
	d.mu.Unlock()
	if b == nil {
		return nil
	}
	_ = b.cmd.Process.Kill()
	<-b.ended
	err := b.c.Close()
	b.tr.CloseIdleConnections()
	return errors.Join(err, os.RemoveAll(b.dir))
}

func (d *namespaces) Machine(id string) box.Machine {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &nsMachine{Client: d.boxes[id].c, d: d, b: d.boxes[id]}
}

func (d *namespaces) Rename(context.Context, string, string) error       { return errors.ErrUnsupported }
func (d *namespaces) Images() box.ImageDriver                            { return nil }
func (d *namespaces) Events(context.Context) iter.Seq2[box.Event, error] { return nil }
func (d *namespaces) Host(context.Context) (box.HostInfo, error) {
	return box.HostInfo{}, errors.ErrUnsupported
}
func (d *namespaces) Metrics(context.Context) (box.Metrics, error) {
	return box.Metrics{}, errors.ErrUnsupported
}
func (d *namespaces) Close() error { return nil }

// nsMachine is a Client, with what only a keeper has.
type nsMachine struct {
	*client.Client
	d *namespaces
	b *nsBox
}

func (m *nsMachine) Info(context.Context) (box.Info, error) { return m.b.info, nil }
func (m *nsMachine) Start(context.Context) error            { return nil }
func (m *nsMachine) StartMain(context.Context, box.AttachOptions) (box.ProcessStream, error) {
	return nil, errors.ErrUnsupported
}
func (m *nsMachine) Kill(context.Context) error { return m.b.cmd.Process.Kill() }
func (m *nsMachine) Wait(context.Context) (*box.ExitStatus, error) {
	<-m.b.ended
	return nil, nil
}
func (m *nsMachine) Logs(context.Context, box.LogOptions) iter.Seq2[box.LogEntry, error] { return nil }
func (m *nsMachine) NetLog(context.Context, box.LogOptions) iter.Seq2[box.NetRecord, error] {
	return nil
}
func (m *nsMachine) Close() error { return nil }

// TestAgent runs the rules about commands, files and servers on the real agent
// through the client.
func TestAgent(t *testing.T) {
	boxtest.Run(t, boxtest.Harness{
		New:           newNamespaces,
		RealProcesses: true, TTY: true, TTYSize: []string{"stty", "size"},
		Serve: func(t *testing.T, _ box.Driver, b *box.Box) (network, addr string) {
			// It lives until the box is removed.
			c := b.Command(context.Background(), "/agent")
			c.Detach = true
			c.Env = []string{roleVar + "=echo"}
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
				t.Fatal(err)
			}
			return "tcp", echoAddr
		},
		Bulk: 16 << 20, Rounds: 3, // the sizes of a unit test
		Groups: []string{"Exec", "Streams", "Ends", "Attach", "TTY", "Files", "OddNames", "FS", "Handles", "Watch", "Tar", "Dial", "Parallel"},
	})
}
