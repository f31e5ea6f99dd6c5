// Command guest is what the end-to-end tests run in boxes: one small static
// program whose first argument is the job. It imports nothing of Hutch, since
// it plays the stranger in the box.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "guest: no job")
		os.Exit(2)
	}
	jobs := map[string]func(args []string) error{
		"records": records, "both": both, "bytewise": bytewise, "environ": environ, "eat": eat,
		"bomb": bomb, "fill": fill, "search": search, "breakout": breakout, "wait": wait, "write": write,
		"fetch": fetch, "download": download, "dial": dial, "lookup": lookup, "listen": listen, "flood": flood,
	}
	job, ok := jobs[os.Args[1]]
	if !ok {
		fmt.Fprintln(os.Stderr, "guest: no such job:", os.Args[1])
		os.Exit(2)
	}
	if err := job(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

// records FIRST FILE appends numbered records of 64 bytes. It prints a number
// only after the record is on the disk.
func records(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	f, err := os.OpenFile(args[1], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	for ; ; n++ {
		if _, err := fmt.Fprintf(f, "%063d\n", n); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if _, err := fmt.Println(n); err != nil {
			return err
		}
	}
}

// both N SEED writes N random bytes to each stream, both at once. The streams
// differ.
func both(args []string) error {
	n, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	seed := []byte(args[1])
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, w := range []io.Writer{os.Stdout, os.Stderr} {
		wg.Go(func() {
			var key [32]byte
			copy(key[:], seed)
			key[31] = byte(i)
			_, errs[i] = io.CopyN(w, rand.NewChaCha8(key), n)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// bytewise N writes characters of 3 and 4 bytes, N bytes in all, one byte at
// each write.
func bytewise(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	text := []byte("€😀")
	for i := range n {
		if _, err := os.Stdout.Write(text[i%len(text):][:1]); err != nil {
			return err
		}
	}
	return nil
}

// environ prints the environment, each variable ended by a zero byte.
func environ([]string) error {
	w := bufio.NewWriter(os.Stdout)
	for _, kv := range os.Environ() {
		w.WriteString(kv)
		w.WriteByte(0)
	}
	return w.Flush()
}

// eat MIB takes and uses that much memory, says so, and holds it. What it has
// so far it says on standard error.
func eat(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var held [][]byte
	for range n {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 512 {
			b[i] = byte(i>>9) | 1
		}
		held = append(held, b)
		fmt.Fprintln(os.Stderr, len(held))
	}
	fmt.Println("ate", len(held))
	return wait(nil)
}

// bomb starts processes that start processes, until none can be started, and
// then says how many times it was refused.
func bomb(args []string) error {
	if len(args) == 0 {
		fmt.Println("armed")
	}
	// Each one starts two and lives on, whatever happens.
	for {
		cmd := exec.Command("/proc/self/exe", "bomb", "child")
		if err := cmd.Start(); err != nil {
			if len(args) == 0 {
				fmt.Println("refused:", err)
				args = []string{"said"}
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// fill FILE writes until the disk refuses, and prints the reason and the size.
func fill(args []string) error {
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i*7) | 1
	}
	var size int64
	for size < 4<<30 {
		n, err := f.Write(block)
		size += int64(n)
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			if errors.Is(err, syscall.ENOSPC) {
				fmt.Println("ENOSPC", size)
				return nil
			}
			return err
		}
	}
	return fmt.Errorf("wrote %d bytes and met no limit", size)
}

// wait lasts until it is killed.
func wait([]string) error {
	for {
		time.Sleep(time.Hour)
	}
}

// write FILE makes the file and the folders above it, and writes to it.
func write(args []string) error {
	if err := os.MkdirAll(filepath.Dir(args[0]), 0o755); err != nil {
		return err
	}
	return os.WriteFile(args[0], []byte("overwritten\n"), 0o644)
}

// search NEEDLE... looks for the needles in all that can be seen from here:
// names and contents of files, what /proc and /sys say, addresses of sockets,
// the kernel's names for this machine. It prints what it found.
func search(needles []string) error {
	report := func(where, needle string) { fmt.Printf("found %s in %s\n", needle, where) }
	look := func(where string, data []byte) {
		for _, n := range needles {
			// Every process that was given the needles has them in its
			// arguments: they come masked, see the tests.
			if bytes.Contains(data, []byte(unmask(n))) {
				report(where, n)
			}
		}
	}
	for _, kv := range os.Environ() {
		look("environment", []byte(kv))
	}
	if name, err := os.Hostname(); err == nil {
		look("host name", []byte(name))
	}
	for _, n := range needles {
		for _, addr := range []string{"@" + unmask(n), "/tmp/" + unmask(n), "/run/" + unmask(n)} {
			if c, err := net.DialTimeout("unix", addr, time.Second); err == nil {
				c.Close()
				report("socket "+addr, n)
			}
		}
	}
	looked := 0
	_ = filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		look("name "+path, []byte(path))
		if d.Type()&fs.ModeSymlink != 0 {
			if target, err := os.Readlink(path); err == nil {
				look("link "+path, []byte(target))
			}
		}
		// A needle that looked at itself would find itself.
		if !d.Type().IsRegular() || path == "/proc/kcore" || strings.HasSuffix(path, "/kmsg") {
			return nil
		}
		looked++
		look(path, head(path))
		return nil
	})
	fmt.Println("looked at", looked, "files")
	return nil
}

// unmask turns a needle as it is in the arguments into the real one.
func unmask(s string) string { return strings.ReplaceAll(s, "%", "") }

// head is what can be read of a file within a moment.
func head(path string) []byte {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, 1<<20))
	return data
}

// breakout DIR FILE tries, as root, to get write access to DIR, which is
// mounted read-only, and to the file FILE in it. It prints what worked.
func breakout(args []string) error {
	dir, file := args[0], args[1]
	try := func(what string, f func() error) {
		if err := f(); err == nil {
			fmt.Println("worked:", what)
		} else {
			fmt.Println("refused:", what+":", err)
		}
	}
	write := func(path string) error { return os.WriteFile(path, []byte("overwritten\n"), 0o644) }
	other, err := os.MkdirTemp("", "breakout")
	if err != nil {
		return err
	}
	try("write", func() error { return write(file) })
	try("create", func() error { return write(filepath.Join(dir, "new")) })
	try("remove", func() error { return os.Remove(file) })
	try("rename", func() error { return os.Rename(file, file+".x") })
	try("chmod", func() error { return os.Chmod(file, 0o777) })
	try("chown", func() error { return os.Chown(file, 1, 1) })
	try("truncate", func() error { return os.Truncate(file, 0) })
	try("times", func() error { return os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)) })
	try("link", func() error { return os.Link(file, filepath.Join(dir, "hard")) })
	try("symlink", func() error { return os.Symlink("x", filepath.Join(dir, "soft")) })
	try("mkdir", func() error { return os.Mkdir(filepath.Join(dir, "sub"), 0o755) })
	try("mkfifo", func() error { return syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644) })
	try("xattr", func() error { return syscall.Setxattr(file, "user.x", []byte("y"), 0) })
	// A mount that was made writable is no harm as long as no write works.
	_ = syscall.Mount("", dir, "", syscall.MS_REMOUNT, "")
	try("write after remount", func() error { return write(file) })
	_ = syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_BIND, "")
	try("write after remount of the bind", func() error { return write(file) })
	if err := syscall.Mount(dir, other, "", syscall.MS_BIND|syscall.MS_REC, ""); err == nil {
		name := filepath.Join(other, filepath.Base(file))
		try("write through another bind", func() error { return write(name) })
		_ = syscall.Mount("", other, "", syscall.MS_REMOUNT|syscall.MS_BIND, "")
		try("write through another bind, remounted", func() error { return write(name) })
	}
	try("write through the root of a process", func() error { return write("/proc/self/root" + file) })
	try("write through the agent's root", func() error { return write("/proc/1/root" + file) })
	if fd, err := syscall.Open(file, syscall.O_RDONLY, 0); err == nil {
		try("write through a descriptor's name", func() error { return write(fmt.Sprintf("/proc/self/fd/%d", fd)) })
		syscall.Close(fd)
	}
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err == nil {
		_ = syscall.Mount("", dir, "", syscall.MS_REMOUNT, "")
		try("write in a new mount namespace", func() error { return write(file) })
	}
	for _, dev := range []string{"/dev/vda", "/dev/sda", "/dev/loop0", "/dev/mem", "/dev/kmem"} {
		try("open "+dev, func() error {
			f, err := os.OpenFile(dev, os.O_RDWR, 0)
			if err == nil {
				f.Close()
			}
			return err
		})
	}
	return nil
}
