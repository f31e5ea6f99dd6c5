package image_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/image"
	"github.com/hutch-sandbox/hutch/internal/image/imagetest"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// TestMain makes the test program its own other processes.
func TestMain(m *testing.M) {
	switch os.Getenv("HUTCH_TEST_IMAGE") {
	case "":
		os.Exit(m.Run())
	case "unpack":
		if err := imagetest.Main(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "pull":
		if err := pullAndUnpack(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "full":
		if err := onFullDisk(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(0)
}

// onFullDisk runs in namespaces of its own, where it can mount a small disk.
// Arguments are its mount point, the registries file, an image too large to be
// downloaded and one too large to be unpacked.
func onFullDisk() error {
	ctx := context.Background()
	dir, huge, puffed := os.Args[1], os.Args[3], os.Args[4]
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4m"); err != nil {
		return fmt.Errorf("no disk: %w", err)
	}
	s, err := image.Open(ctx, filepath.Join(dir, "images"), image.Config{Registries: os.Args[2], DockerConfig: dir})
	if err != nil {
		return err
	}
	exhausted := func(what string, err error) {
		if box.KindOf(err) != box.Exhausted || !strings.Contains(box.HintOf(err), "prune") {
			fmt.Printf("%s on a full disk: %v\n", what, err)
		}
	}
	_, err = s.Pull(ctx, huge, image.PullOptions{})
	exhausted("pull", err)
	if _, err := s.Prune(ctx, nil, image.PruneOptions{}); err != nil {
		fmt.Println("prune on a full disk:", err)
	}
	img, err := s.Pull(ctx, puffed, image.PullOptions{})
	if err != nil {
		return err
	}
	_, err = s.Tree(ctx, img, "")
	exhausted("unpack", err)
	_, err = s.Pull(ctx, huge, image.PullOptions{}) // fills it up again
	exhausted("pull", err)
	if _, err := s.Remove(ctx, puffed, nil); err != nil {
		fmt.Println("remove on a full disk:", err)
	}
	if got, err := s.Prune(ctx, nil, image.PruneOptions{All: true}); err != nil || got.Freed < 1<<20 {
		fmt.Println("prune on a full disk:", got, err)
	}
	return nil
}

// pullAndUnpack is what a process does in the tests below: arguments are the
// images folder, the registries file and the references.
func pullAndUnpack() error {
	ctx := context.Background()
	s, err := image.Open(ctx, os.Args[1], image.Config{Registries: os.Args[2], DockerConfig: os.Args[1], Helper: helper()})
	if err != nil {
		return err
	}
	for _, ref := range os.Args[3:] {
		img, lease, err := s.Use(ctx, ref, image.PullOptions{})
		if err != nil {
			return err
		}
		if _, err := s.Tree(ctx, img, ""); err != nil {
			return err
		}
		lease.Close()
	}
	return nil
}

// helper unpacks in a process of its own.
func helper() layer.Helper {
	return imagetest.Process(func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.Env = []string{"HUTCH_TEST_IMAGE=unpack"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	})
}

// puller makes a process that pulls and unpacks.
func puller(t testing.TB, dir string, reg *imagetest.Registry, refs ...string) *exec.Cmd {
	t.Helper()
	file := filepath.Join(t.TempDir(), "registries.json")
	data, err := json.Marshal(image.Registries{Registries: map[string]image.Registry{reg.Host: {Insecure: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, append([]string{dir, file}, refs...)...)
	cmd.Env = append(os.Environ(), "HUTCH_TEST_IMAGE=pull")
	return cmd
}

func TestPullByManyProcesses(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	img := imagetest.New(t, "", nil, noise(t, "a", 500_000), noise(t, "bb", 300_000), noise(t, "ccc", 100_000))
	reg.Push(t, "app", "1", img)
	// The first requests wait for each other, so that the processes meet.
	var fetched sync.Map
	var met sync.WaitGroup
	met.Add(3)
	var asked atomic.Int32
	reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/manifests/") && asked.Add(1) <= 3 {
			met.Done()
			met.Wait()
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			n, _ := fetched.LoadOrStore(r.URL.Path, new(atomic.Int32))
			n.(*atomic.Int32).Add(1)
		}
		next.ServeHTTP(w, r)
	})
	dir := newDir(t)
	var wg sync.WaitGroup
	for range 3 {
		cmd := puller(t, dir, reg, reg.Host+"/app:1")
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	fetched.Range(func(k, n any) bool {
		if got := n.(*atomic.Int32).Load(); got != 1 {
			t.Errorf("%v was fetched %d times", k, got)
		}
		return true
	})
	s := open(t, dir, reg)
	if _, err := s.Get(t.Context(), "app:1"); err != nil {
		t.Error(err)
	}
	if trees := files(t, filepath.Join(dir, "trees")); len(trees) != 1 {
		t.Errorf("trees: %v", trees)
	}
}

// Whenever a process is killed, what is visible is whole, the next one can go
// on, and nothing is lost for good.
func TestKilledAtAnyMoment(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 4
	}
	var many []imagetest.File
	for i := range 300 {
		many = append(many, imagetest.File{Name: fmt.Sprintf("d%d/f%d", i%20, i), Body: strings.Repeat("x", i*37)})
	}
	img := imagetest.New(t, "", nil, noise(t, "a", 400_000), imagetest.Gzip(t, imagetest.Tar(t, many...)))
	reg := imagetest.NewRegistry(t)
	reg.Push(t, "app", "1", img)
	reg.Hook(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if isBlob(r, img.Layers[0]) && r.Header.Get("Range") == "" {
			for part := range slicesOf(img.Layers[0].Data, 20_000) { // in no hurry
				w.Write(part)
				w.(http.Flusher).Flush()
				time.Sleep(time.Millisecond)
			}
			return
		}
		next.ServeHTTP(w, r)
	})
	dir := newDir(t)
	ref := reg.Host + "/app:1"
	// How long it takes undisturbed.
	start := time.Now()
	if out, err := puller(t, dir, reg, ref).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	whole := time.Since(start)
	finished := 0
	for round := range rounds {
		cmd := puller(t, dir, reg, ref)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(whole + whole/8))
		cmd.Process.Kill()
		if cmd.Wait() == nil {
			finished++
		}
		s := open(t, dir, reg)
		check(t, s, dir, img)
		switch round % 4 {
		case 0: // start anew
			if _, err := s.Remove(t.Context(), ref, nil); err == nil {
				check(t, s, dir, img)
			}
			fallthrough
		case 1:
			if _, err := s.Prune(t.Context(), nil, image.PruneOptions{All: true}); err != nil {
				t.Fatalf("prune: %v", err)
			}
			for _, d := range []string{"blobs/sha256", "trees", "partial", "tmp"} {
				if left := files(t, filepath.Join(dir, d)); len(left) != 0 {
					t.Fatalf("round %d: prune leaves %v in %s", round, left, d)
				}
			}
		case 2: // go on
			got, err := s.Pull(t.Context(), ref, image.PullOptions{})
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if _, err := s.Tree(t.Context(), got, ""); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			check(t, s, dir, img)
			if _, err := s.Remove(t.Context(), ref, nil); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	t.Logf("%d of %d finished before they were killed", finished, rounds)
}

func slicesOf(data []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(data) > 0 {
			k := min(n, len(data))
			if !yield(data[:k]) {
				return
			}
			data = data[k:]
		}
	}
}

// check fails the test if the store shows anything that is not whole.
func check(t *testing.T, s *image.Store, dir string, img imagetest.Image) {
	t.Helper()
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	for _, got := range list {
		for _, b := range append([]imagetest.Blob{img.Manifest, img.Config}, img.Layers...) {
			data, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", strings.TrimPrefix(b.Digest, "sha256:")))
			if err != nil || !bytes.Equal(data, b.Data) {
				t.Fatalf("%s is listed, but %s is wrong: %v", got.Name, b.Digest, err)
			}
		}
	}
	for _, name := range files(t, filepath.Join(dir, "blobs/sha256")) {
		data, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", name))
		if err != nil || imagetest.Digest(data) != "sha256:"+name {
			t.Fatalf("blob %s is not whole: %v", name, err)
		}
	}
	for _, name := range files(t, filepath.Join(dir, "trees")) {
		n := 0
		filepath.WalkDir(filepath.Join(dir, "trees", name, "rootfs"), func(_ string, d os.DirEntry, _ error) error {
			if d.Type().IsRegular() {
				n++
			}
			return nil
		})
		if n != 301 {
			t.Fatalf("the tree has %d files, want 301", n)
		}
	}
	if left := files(t, filepath.Join(dir, "tmp")); len(left) != 0 {
		t.Fatalf("open leaves %v in tmp", left)
	}
}

// Many images come and go in several processes and goroutines at once; what
// somebody has a lease on stays.
func TestRemoveWhileUsed(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	var refs []string
	for i := range 3 {
		reg.Push(t, "app", fmt.Sprint(i), simple(t, fmt.Sprint(i)))
		refs = append(refs, fmt.Sprintf("%s/app:%d", reg.Host, i))
	}
	dir := newDir(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		s := open(t, dir, reg)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := s.Prune(t.Context(), nil, image.PruneOptions{All: true}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var users sync.WaitGroup
	for u := range 4 {
		users.Go(func() {
			s := open(t, dir, reg)
			for i := range 6 {
				ref := refs[(u+i)%len(refs)]
				img, lease, err := s.Use(t.Context(), ref, image.PullOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				tree, err := s.Tree(t.Context(), img, "")
				if err != nil {
					t.Error(err)
				} else if b, err := os.ReadFile(filepath.Join(tree.Dir, "etc/base")); err != nil || string(b) != "base" {
					t.Errorf("leased, and yet: %q, %v", b, err)
				}
				lease.Close()
			}
		})
	}
	users.Wait()
	close(stop)
	wg.Wait()
	s := open(t, dir, reg)
	if _, err := s.Prune(t.Context(), nil, image.PruneOptions{All: true}); err != nil {
		t.Error(err)
	}
	for _, d := range []string{"blobs/sha256", "trees", "partial", "tmp"} {
		if left := files(t, filepath.Join(dir, d)); len(left) != 0 {
			t.Errorf("%s still has %v", d, left)
		}
	}
}

// A full disk is reported as one, and room can be made on it.
func TestFullDisk(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	reg.Push(t, "huge", "1", imagetest.New(t, "", nil, noise(t, "a", 8<<20)))
	reg.Push(t, "puffed", "1", imagetest.New(t, "", nil, imagetest.Gzip(t, imagetest.Tar(t, imagetest.File{Name: "f", Body: strings.Repeat("x", 8<<20)}))))
	cmd := puller(t, t.TempDir(), reg, reg.Host+"/huge:1", reg.Host+"/puffed:1")
	cmd.Env = append(os.Environ(), "HUTCH_TEST_IMAGE=full")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	if err != nil && (len(out) == 0 || bytes.Contains(out, []byte("no disk"))) {
		t.Skipf("no user namespaces here: %v %s", err, out)
	}
	if err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
