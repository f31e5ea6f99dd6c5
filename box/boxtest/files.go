package boxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing/fstest"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

func files(s *suite) {
	b := s.box()
	s.rule("ReadWrite", "what is written is read, by files and by commands, and commands' files too", func(t *T) {
		data := noise(5, 1<<20)
		t.ok(b.WriteFile(t.ctx, "/rw", data, 0o600), "WriteFile")
		got, err := b.ReadFile(t.ctx, "/rw")
		t.ok(err, "ReadFile")
		t.same("ReadFile", got, data)
		out, err := b.Command(t.ctx, "cat", "/rw").Output()
		t.ok(err, "cat")
		t.same("cat", out, data)
		t.sh(b, "echo from the command > /cmd")
		got, err = b.ReadFile(t.ctx, "/cmd")
		t.ok(err, "ReadFile")
		if string(got) != "from the command\n" {
			t.Errorf("read %q", got)
		}
	})
	s.rule("NotRegular", "devices and pipes are refused with a reason, since they could keep a caller for ever", func(t *T) {
		paths := []string{"/dev/null"}
		if t.suite.h.RealProcesses {
			if r, err := b.Exec(t.ctx, "mkfifo", "/fifo"); err == nil && r.Success() {
				paths = append(paths, "/fifo")
			}
		}
		for _, path := range paths {
			if _, err := b.ReadFile(t.ctx, path); err == nil {
				t.Errorf("ReadFile of %s", path)
			}
			if _, err := b.Open(t.ctx, path); err == nil {
				t.Errorf("Open of %s", path)
			}
			if err := b.WriteFile(t.ctx, path, []byte("x"), 0); err == nil {
				t.Errorf("WriteFile to %s", path)
			}
			if info, err := b.Stat(t.ctx, path); err != nil || info.Type() == 0 {
				t.Errorf("%s is now %+v, %v", path, info, err)
			}
		}
	})
	s.rule("Range", "a range of a file can be streamed", func(t *T) {
		t.ok(b.WriteFile(t.ctx, "/range", []byte("0123456789"), 0), "WriteFile")
		for _, c := range []struct {
			off, n int64
			want   string
		}{{0, 0, "0123456789"}, {3, 0, "3456789"}, {3, 4, "3456"}, {8, 100, "89"}, {50, 0, ""}} {
			info, r, err := b.ReadStream(t.ctx, "/range", c.off, c.n)
			t.ok(err, "ReadStream")
			got, err := io.ReadAll(r)
			t.ok(err, "ReadAll")
			t.ok(r.Close(), "Close")
			if string(got) != c.want || info.FileSize != 10 {
				t.Errorf("from %d, %d bytes: %q of %d, want %q", c.off, c.n, got, info.FileSize, c.want)
			}
		}
	})
	s.rule("Opened", "a file that is read is named without links", func(t *T) {
		t.ok(b.MkdirAll(t.ctx, "/real/dir", 0o755), "MkdirAll")
		t.ok(b.WriteFile(t.ctx, "/real/dir/file", []byte("x"), 0), "WriteFile")
		t.ok(b.Symlink(t.ctx, "real/dir", "/led"), "Symlink")
		t.ok(b.Symlink(t.ctx, "/led/file", "/led-to"), "Symlink")
		for _, name := range []string{"/real/dir/file", "/led/file", "/led-to", "/led/../dir/file"} {
			info, r, err := b.ReadStream(t.ctx, name, 0, 0)
			t.ok(err, "ReadStream")
			t.ok(r.Close(), "Close")
			if info.RealPath != "/real/dir/file" {
				t.Errorf("%s is %q", name, info.RealPath)
			}
		}
	})
	s.rule("Replace", "replacing a file keeps its mode, its owner, and the symbolic link that led to it", func(t *T) {
		t.ok(b.WriteFile(t.ctx, "/tool", []byte("old"), 0), "WriteFile")
		t.ok(b.Chmod(t.ctx, "/tool", 0o751), "Chmod")
		t.ok(b.Chown(t.ctx, "/tool", 12, 34), "Chown")
		t.ok(b.Symlink(t.ctx, "tool", "/to-tool"), "Symlink")
		t.ok(b.WriteFile(t.ctx, "/to-tool", []byte("new"), 0o600), "WriteFile")
		info, err := b.Stat(t.ctx, "/tool")
		t.ok(err, "Stat")
		if info.FileMode != 0o751 || info.UID != 12 || info.GID != 34 {
			t.Errorf("now %v %d:%d", info.FileMode, info.UID, info.GID)
		}
		if target, err := b.Readlink(t.ctx, "/to-tool"); err != nil || target != "tool" {
			t.Errorf("the link is %q, %v", target, err)
		}
		got, err := b.ReadFile(t.ctx, "/tool")
		t.ok(err, "ReadFile")
		if string(got) != "new" {
			t.Errorf("content %q", got)
		}
	})
	s.rule("AtomicFailure", "an atomic write whose source fails changes nothing and leaves nothing behind", func(t *T) {
		t.ok(b.MkdirAll(t.ctx, "/atomic", 0o755), "MkdirAll")
		t.ok(b.WriteFile(t.ctx, "/atomic/f", []byte("old"), 0), "WriteFile")
		bad := errors.New("the source failed")
		_, err := b.WriteStream(t.ctx, "/atomic/f", io.MultiReader(bytes.NewReader(noise(6, 1<<20)), errReader{bad}), box.WriteOptions{Atomic: true})
		t.is(err, bad, "WriteStream")
		got, err := b.ReadFile(t.ctx, "/atomic/f")
		t.ok(err, "ReadFile")
		if string(got) != "old" {
			t.Errorf("%d bytes now", len(got))
		}
		t.eventually("nothing is left behind", func() bool {
			entries, err := b.ReadDir(t.ctx, "/atomic")
			t.ok(err, "ReadDir")
			return len(entries) == 1
		})
	})
	s.rule("WriteOptions", "append, exclusive and parents do what they say", func(t *T) {
		write := func(path, data string, opts box.WriteOptions) error {
			_, err := b.WriteStream(t.ctx, path, strings.NewReader(data), opts)
			return err
		}
		t.ok(write("/made/on/the/way/f", "one", box.WriteOptions{Parents: true}), "parents")
		t.ok(write("/made/on/the/way/f", "two", box.WriteOptions{Append: true}), "append")
		t.is(write("/made/on/the/way/f", "x", box.WriteOptions{Exclusive: true}), fs.ErrExist, "exclusive")
		t.is(write("/missing/f", "x", box.WriteOptions{}), fs.ErrNotExist, "no parents")
		got, err := b.ReadFile(t.ctx, "/made/on/the/way/f")
		t.ok(err, "ReadFile")
		if string(got) != "onetwo" {
			t.Errorf("content %q", got)
		}
		info, err := b.Stat(t.ctx, "/made/on/the/way")
		t.ok(err, "Stat")
		if info.FileMode != fs.ModeDir|0o755 {
			t.Errorf("parent has mode %v", info.FileMode)
		}
	})
	s.rule("Errors", "what the kernel refuses is an *fs.PathError with its errno, and looks like one of package os", func(t *T) {
		t.sh(b, "rm -rf /e; mkdir -p /e/dir/full; echo x > /e/file; ln -s /e/loop /e/loop")
		for _, c := range []struct {
			name  string
			err   error
			errno syscall.Errno
		}{
			{"missing", second(b.ReadFile(t.ctx, "/e/none")), syscall.ENOENT},
			{"below a file", second(b.Stat(t.ctx, "/e/file/x")), syscall.ENOTDIR},
			{"mkdir of what exists", b.Mkdir(t.ctx, "/e/dir", 0o755), syscall.EEXIST},
			{"mkdir without parent", b.Mkdir(t.ctx, "/e/no/dir", 0o755), syscall.ENOENT},
			{"remove of a full directory", b.RemoveFile(t.ctx, "/e/dir"), syscall.ENOTEMPTY},
			{"remove of nothing", b.RemoveFile(t.ctx, "/e/none"), syscall.ENOENT},
			{"readdir of a file", second(b.ReadDir(t.ctx, "/e/file")), syscall.ENOTDIR},
			{"write to a directory", b.WriteFile(t.ctx, "/e/dir", nil, 0), syscall.EISDIR},
			{"readlink of a file", second(b.Readlink(t.ctx, "/e/file")), syscall.EINVAL},
			{"a loop", second(b.ReadFile(t.ctx, "/e/loop")), syscall.ELOOP},
			{"rename of nothing", b.Rename(t.ctx, "/e/none", "/e/x"), syscall.ENOENT},
			{"symlink over a file", b.Symlink(t.ctx, "x", "/e/file"), syscall.EEXIST},
			{"rename into itself", b.Rename(t.ctx, "/e/dir", "/e/dir/full/x"), syscall.EINVAL},
			{"a long name", b.WriteFile(t.ctx, "/e/"+strings.Repeat("n", 300), nil, 0), syscall.ENAMETOOLONG},
		} {
			var p *fs.PathError
			if !errors.As(c.err, &p) || !errors.Is(c.err, c.errno) {
				t.Errorf("%s: %v (%T), want an *fs.PathError with %v", c.name, c.err, c.err, c.errno)
			}
		}
	})
	s.rule("Metadata", "modes, owners, times, links and types are told and can be changed", func(t *T) {
		t.ok(b.WriteFile(t.ctx, "/meta", []byte("12345"), 0o640), "WriteFile")
		when := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		t.ok(b.Chtimes(t.ctx, "/meta", when, when), "Chtimes")
		t.ok(b.Chmod(t.ctx, "/meta", 0o755|fs.ModeSetuid), "Chmod")
		t.ok(b.Chown(t.ctx, "/meta", 7, -1), "Chown")
		t.ok(b.Chmod(t.ctx, "/meta", 0o755|fs.ModeSetuid), "Chmod after Chown")
		t.ok(b.Chtimes(t.ctx, "/meta", when, when), "Chtimes")
		t.ok(b.Link(t.ctx, "/meta", "/meta2"), "Link")
		info, err := b.Stat(t.ctx, "/meta2")
		t.ok(err, "Stat")
		if info.FileName != "meta2" || info.FileSize != 5 || info.FileMode != 0o755|fs.ModeSetuid || info.UID != 7 || info.GID != 0 ||
			info.Links != 2 || !info.Modified.Equal(when) {
			t.Errorf("info %+v", info)
		}
		t.ok(b.Symlink(t.ctx, "meta", "/slink"), "Symlink")
		t.ok(b.Lchown(t.ctx, "/slink", 99, 98), "Lchown")
		info, err = b.Lstat(t.ctx, "/slink")
		t.ok(err, "Lstat")
		if info.Type() != fs.ModeSymlink || info.Target != "meta" || info.UID != 99 || info.GID != 98 {
			t.Errorf("link %+v", info)
		}
		if info, err := b.Stat(t.ctx, "/slink"); err != nil || info.UID != 7 {
			t.Errorf("what it leads to: %+v, %v", info, err)
		}
		if info, err := b.Stat(t.ctx, "/dev/null"); err != nil || info.Type() != fs.ModeDevice|fs.ModeCharDevice {
			t.Errorf("/dev/null: %+v, %v", info, err)
		}
		if info, err := b.Stat(t.ctx, "/tmp"); err != nil || info.FileMode != fs.ModeDir|fs.ModeSticky|0o777 {
			t.Errorf("/tmp: %+v, %v", info, err)
		}
	})
	s.rule("Directories", "directories are made, listed in order, renamed and removed", func(t *T) {
		t.ok(b.MkdirAll(t.ctx, "/d/e/f", 0o750), "MkdirAll")
		t.ok(b.MkdirAll(t.ctx, "/d/e/f", 0o750), "MkdirAll again")
		for _, name := range []string{"c", "a", "b"} {
			t.ok(b.WriteFile(t.ctx, "/d/"+name, nil, 0), "WriteFile")
		}
		entries, err := b.ReadDir(t.ctx, "/d")
		t.ok(err, "ReadDir")
		var names []string
		for _, e := range entries {
			names = append(names, e.FileName)
		}
		if !slices.Equal(names, []string{"a", "b", "c", "e"}) {
			t.Errorf("names %q", names)
		}
		t.ok(b.Rename(t.ctx, "/d/e", "/d/g"), "Rename")
		t.ok(b.Rename(t.ctx, "/d/a", "/d/b"), "Rename over a file")
		t.ok(b.RemoveAll(t.ctx, "/d"), "RemoveAll")
		t.ok(b.RemoveAll(t.ctx, "/d"), "RemoveAll again")
		_, err = b.Stat(t.ctx, "/d")
		t.is(err, fs.ErrNotExist, "Stat")
	})
	s.rule("ManyEntries", "a directory of some thousand entries is listed whole", func(t *T) {
		t.sh(b, `mkdir -p /many; cd /many; for i in $(seq 1 3000); do : > "file-number-$i"; done`)
		entries, err := b.ReadDir(t.ctx, "/many")
		t.ok(err, "ReadDir")
		if len(entries) != 3000 {
			t.Errorf("%d entries", len(entries))
		}
	})
	s.rule("SymlinkRemoved", "removing a symbolic link removes the link, and RemoveAll does not follow it", func(t *T) {
		t.sh(b, "mkdir -p /real; echo x > /real/f; ln -s /real /way")
		t.ok(b.RemoveAll(t.ctx, "/way"), "RemoveAll")
		if _, err := b.Stat(t.ctx, "/real/f"); err != nil {
			t.Errorf("what the link led to: %v", err)
		}
	})
	s.rule("Realpath", "Realpath resolves links as the kernel does", func(t *T) {
		t.sh(b, "mkdir -p /rp/a/b; ln -s a/b /rp/l; ln -s /rp/l /rp/m")
		for in, want := range map[string]string{"/rp/m": "/rp/a/b", "/rp/l/..": "/rp/a", "/rp/./a": "/rp/a", "/": "/"} {
			got, err := b.Realpath(t.ctx, in)
			t.ok(err, "Realpath "+in)
			if got != want {
				t.Errorf("%s is %s, want %s", in, got, want)
			}
		}
		_, err := b.Realpath(t.ctx, "/rp/none")
		t.is(err, fs.ErrNotExist, "Realpath")
	})
	s.rule("Everywhere", "files work in /tmp and /dev/shm as anywhere", func(t *T) {
		for _, dir := range []string{"/tmp", "/dev/shm"} {
			t.ok(b.WriteFile(t.ctx, dir+"/here", []byte(dir), 0), "WriteFile")
			if got := t.sh(b, "cat "+dir+"/here"); got != dir {
				t.Errorf("%s: a command reads %q", dir, got)
			}
		}
	})
	s.rule("Relative", "a relative path is below the box's working directory", func(t *T) {
		b := t.create(box.Spec{Dir: "/work"})
		t.ok(b.WriteFile(t.ctx, "rel", []byte("x"), 0), "WriteFile")
		if got := t.sh(b, "cat /work/rel"); got != "x" {
			t.Errorf("read %q", got)
		}
	})
}

func second[T any](_ T, err error) error { return err }

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// odd are names that break what treats names as text or as shell.
var odd = []string{"a b", "it's", `"quoted"`, "new\nline", "-rf", "--", "*", "$HOME", "`x`", "tab\t", `back\slash`, "é水🦊", "\xff\xfe\x80", " ", "a;b|c&d", "#", "%s", "~", strings.Repeat("n", 255)}

func oddNames(s *suite) {
	b := s.box()
	s.rule("Operations", "every file operation works with odd names: spaces, quotes, newlines, leading dashes, bytes that are no UTF-8", func(t *T) {
		t.ok(b.Mkdir(t.ctx, "/odd", 0o755), "Mkdir")
		for _, name := range odd {
			dir := "/odd/" + name
			step := func(what string, err error) {
				t.Helper()
				t.ok(err, fmt.Sprintf("%s with %q", what, name))
			}
			step("Mkdir", b.Mkdir(t.ctx, dir, 0o755))
			file, link, hard, moved := dir+"/"+name, dir+"/l", dir+"/h", dir+"/m"
			step("WriteFile", b.WriteFile(t.ctx, file, []byte(name), 0o644))
			step("Symlink", b.Symlink(t.ctx, name, link))
			step("Link", b.Link(t.ctx, file, hard))
			target, err := b.Readlink(t.ctx, link)
			step("Readlink", err)
			real, err := b.Realpath(t.ctx, link)
			step("Realpath", err)
			if target != name || real != file {
				t.Errorf("%q: target %q, real path %q", name, target, real)
			}
			got, err := b.ReadFile(t.ctx, link)
			step("ReadFile", err)
			if string(got) != name {
				t.Errorf("%q: read %q", name, got)
			}
			step("Chmod", b.Chmod(t.ctx, file, 0o600))
			step("Chtimes", b.Chtimes(t.ctx, file, time.Unix(1, 0), time.Unix(2, 0)))
			step("Chown", b.Chown(t.ctx, file, 1, 1))
			out, err := b.Command(t.ctx, "cat", "--", file).Output()
			step("cat", err)
			if string(out) != name {
				t.Errorf("%q: cat says %q", name, out)
			}
			f, err := b.Open(t.ctx, file)
			step("Open", err)
			step("Close", f.Close())
			step("Rename", b.Rename(t.ctx, hard, moved))
			step("RemoveFile", b.RemoveFile(t.ctx, moved))
			entries, err := b.ReadDir(t.ctx, dir)
			step("ReadDir", err)
			if len(entries) != 2 || !slices.ContainsFunc(entries, func(e box.FileInfo) bool { return e.FileName == name && e.FileSize == int64(len(name)) }) {
				t.Errorf("%q: entries %v", name, entries)
			}
		}
		entries, err := b.ReadDir(t.ctx, "/odd")
		t.ok(err, "ReadDir")
		if len(entries) != len(odd) {
			t.Errorf("%d entries, want %d", len(entries), len(odd))
		}
		r, err := b.CopyOut(t.ctx, "/odd", box.PackOptions{Name: "."})
		t.ok(err, "CopyOut")
		defer r.Close()
		t.ok(b.Mkdir(t.ctx, "/odd2", 0o755), "Mkdir")
		t.ok(b.CopyIn(t.ctx, "/odd2", r, box.UnpackOptions{KeepOwner: true}), "CopyIn")
		for _, name := range odd {
			got, err := b.ReadFile(t.ctx, "/odd2/"+name+"/"+name)
			t.ok(err, fmt.Sprintf("ReadFile of the copy of %q", name))
			if string(got) != name {
				t.Errorf("the copy of %q has %q", name, got)
			}
		}
		t.ok(b.RemoveAll(t.ctx, "/odd"), "RemoveAll")
	})
}

func conformance(s *suite) {
	b := s.box()
	s.rule("TestFS", "FS passes the standard library's own test of an fs.FS", func(t *T) {
		t.sh(b, "mkdir -p /tree/sub/deep '/tree/with space'; echo a > /tree/a; echo b > /tree/sub/b; : > /tree/sub/deep/empty; echo c > '/tree/with space/c'; ln -s sub/b /tree/link")
		if err := fstest.TestFS(b.DirFS(t.ctx, "/tree"), "a", "sub/b", "sub/deep/empty", "with space/c", "link"); err != nil {
			t.Error(err)
		}
		got, err := fs.ReadFile(b.FS(t.ctx), "tree/sub/b")
		t.ok(err, "ReadFile")
		if string(got) != "b\n" {
			t.Errorf("read %q", got)
		}
		_, err = fs.Stat(b.FS(t.ctx), "no/such/file")
		t.is(err, fs.ErrNotExist, "Stat")
	})
}

func handles(s *suite) {
	b := s.box()
	s.rule("ReadWriteSeek", "an open file reads, writes, seeks and truncates as an os.File does", func(t *T) {
		f, err := b.Create(t.ctx, "/h")
		t.ok(err, "Create")
		defer f.Close()
		_, err = f.WriteString("hello world")
		t.ok(err, "Write")
		_, err = f.WriteAt([]byte("W"), 6)
		t.ok(err, "WriteAt")
		_, err = f.Seek(-5, io.SeekEnd)
		t.ok(err, "Seek")
		rest, err := io.ReadAll(f)
		t.ok(err, "ReadAll")
		buf := make([]byte, 20)
		n, err := f.ReadAt(buf, 0)
		if string(rest) != "World" || n != 11 || !errors.Is(err, io.EOF) {
			t.Errorf("read %q, then %d bytes and %v", rest, n, err)
		}
		t.ok(f.Truncate(5), "Truncate")
		t.ok(f.Sync(), "Sync")
		info, err := f.Stat()
		t.ok(err, "Stat")
		if info.Size() != 5 || info.Name() != "h" {
			t.Errorf("info %v", info)
		}
		t.ok(f.Close(), "Close")
		t.is(f.Close(), fs.ErrClosed, "second Close")
		_, err = f.Read(buf)
		t.is(err, fs.ErrClosed, "Read")
	})
	s.rule("SameFile", "an open file stays the same when its name is removed or replaced", func(t *T) {
		t.ok(b.WriteFile(t.ctx, "/victim", []byte("first"), 0), "WriteFile")
		f, err := b.Open(t.ctx, "/victim")
		t.ok(err, "Open")
		defer f.Close()
		t.ok(b.RemoveFile(t.ctx, "/victim"), "RemoveFile")
		t.ok(b.WriteFile(t.ctx, "/victim", []byte("other"), 0), "WriteFile")
		got, err := io.ReadAll(f)
		t.ok(err, "ReadAll")
		if string(got) != "first" {
			t.Errorf("read %q", got)
		}
	})
	s.rule("Append", "an appending file writes at the end, whoever else writes", func(t *T) {
		f, err := b.OpenFile(t.ctx, "/log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		t.ok(err, "OpenFile")
		defer f.Close()
		for i := range 3 {
			_, err := fmt.Fprintf(f, "ours %d\n", i)
			t.ok(err, "Write")
			t.sh(b, "echo theirs >> /log")
		}
		if _, err := f.WriteAt([]byte("x"), 0); err == nil {
			t.Error("WriteAt on an appending file")
		}
		got, err := b.ReadFile(t.ctx, "/log")
		t.ok(err, "ReadFile")
		if want := "ours 0\ntheirs\nours 1\ntheirs\nours 2\ntheirs\n"; string(got) != want {
			t.Errorf("got %q", got)
		}
	})
	s.rule("Flags", "exclusive, read-only and write-only are kept", func(t *T) {
		t.ok(b.WriteFile(t.ctx, "/flags", []byte("x"), 0), "WriteFile")
		_, err := b.OpenFile(t.ctx, "/flags", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		t.is(err, fs.ErrExist, "O_EXCL")
		_, err = b.Open(t.ctx, "/none")
		t.is(err, fs.ErrNotExist, "Open")
		f, err := b.Open(t.ctx, "/flags")
		t.ok(err, "Open")
		defer f.Close()
		if _, err := f.Write([]byte("y")); err == nil {
			t.Error("a read-only file was written")
		}
	})
	s.rule("Bulk", "a large file goes through an open file in both directions", func(t *T) {
		data := noise(7, min(t.suite.h.Bulk, 16<<20))
		f, err := b.Create(t.ctx, "/bulk")
		t.ok(err, "Create")
		defer f.Close()
		_, err = io.Copy(f, bytes.NewReader(data))
		t.ok(err, "Copy in")
		_, err = f.Seek(0, io.SeekStart)
		t.ok(err, "Seek")
		var got bytes.Buffer
		_, err = io.Copy(&got, f)
		t.ok(err, "Copy out")
		t.same("file", got.Bytes(), data)
	})
}

func watch(s *suite) {
	b := s.box()
	s.rule("Events", "a watch that is in place sees files made, written, renamed and removed, by commands too", func(t *T) {
		t.ok(b.MkdirAll(t.ctx, "/w/sub", 0o755), "MkdirAll")
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		events, err := b.Watch(ctx, "/w", true)
		t.ok(err, "Watch")
		var mu sync.Mutex
		seen := make(map[string]bool)
		var wg sync.WaitGroup
		wg.Go(func() {
			for ev, err := range events {
				if err != nil {
					t.Errorf("Watch: %v", err)
					return
				}
				mu.Lock()
				seen[ev.Op+" "+ev.Path] = true
				mu.Unlock()
			}
		})
		defer wg.Wait()
		defer cancel()
		sees := func(ops []string, path string) {
			t.Helper()
			t.eventually(fmt.Sprint(ops, " of ", path), func() bool {
				mu.Lock()
				defer mu.Unlock()
				return slices.ContainsFunc(ops, func(op string) bool { return seen[op+" "+path] })
			})
		}
		t.sh(b, "echo x > /w/by-command")
		sees([]string{"create", "write"}, "/w/by-command")
		t.ok(b.WriteFile(t.ctx, "/w/sub/by-file", []byte("x"), 0), "WriteFile")
		sees([]string{"create", "write", "rename"}, "/w/sub/by-file")
		t.ok(b.RemoveFile(t.ctx, "/w/by-command"), "RemoveFile")
		sees([]string{"remove"}, "/w/by-command")
	})
	s.rule("Missing", "watching what is not there is an error", func(t *T) {
		_, err := b.Watch(t.ctx, "/no/such/dir", false)
		t.is(err, fs.ErrNotExist, "Watch")
	})
}

func tars(s *suite) {
	b := s.box()
	s.rule("RoundTrip", "a tree copied out and in again is the same, also in /tmp and /dev/shm", func(t *T) {
		for _, dir := range []string{"/tmp", "/dev/shm", "/root"} {
			from, to := dir+"/from", dir+"/to"
			t.sh(b, "rm -rf "+from+" "+to+"; mkdir -p "+from+"/sub/empty "+to)
			data := noise(8, 700_001)
			t.ok(b.WriteFile(t.ctx, from+"/data", data, 0o640), "WriteFile")
			t.ok(b.WriteFile(t.ctx, from+"/sub/tool", []byte("#!/bin/sh\n"), 0o755), "WriteFile")
			t.ok(b.Symlink(t.ctx, "../data", from+"/sub/link"), "Symlink")
			t.ok(b.Link(t.ctx, from+"/data", from+"/hard"), "Link")
			t.ok(b.Chown(t.ctx, from+"/data", 11, 22), "Chown")
			when := time.Unix(1_000_000_000, 0)
			t.ok(b.Chtimes(t.ctx, from+"/data", when, when), "Chtimes")
			r, err := b.CopyOut(t.ctx, from, box.PackOptions{Name: "."})
			t.ok(err, "CopyOut")
			err = b.CopyIn(t.ctx, to, r, box.UnpackOptions{KeepOwner: true})
			t.ok(errors.Join(err, r.Close()), "CopyIn")
			got, err := b.ReadFile(t.ctx, to+"/data")
			t.ok(err, "ReadFile")
			t.same(dir, got, data)
			info, err := b.Stat(t.ctx, to+"/data")
			t.ok(err, "Stat")
			if info.FileMode != 0o640 || info.UID != 11 || info.GID != 22 || info.Links != 2 || !info.Modified.Equal(when) {
				t.Errorf("%s: data is %+v", dir, info)
			}
			if info, err := b.Stat(t.ctx, to+"/sub/tool"); err != nil || info.FileMode != 0o755 {
				t.Errorf("%s: tool is %+v, %v", dir, info, err)
			}
			if target, err := b.Readlink(t.ctx, to+"/sub/link"); err != nil || target != "../data" {
				t.Errorf("%s: link is %q, %v", dir, target, err)
			}
			if _, err := b.Stat(t.ctx, to+"/sub/empty"); err != nil {
				t.Errorf("%s: empty directory: %v", dir, err)
			}
		}
	})
	s.rule("Names", "the top entry has the path's base name, or the one asked for, or none", func(t *T) {
		t.sh(b, "mkdir -p /names/dir; echo x > /names/dir/f")
		for _, c := range []struct {
			path, name string
			want       []string
		}{
			{"/names/dir", "", []string{"dir", "dir/f"}},
			{"/names/dir", "other", []string{"other", "other/f"}},
			{"/names/dir/f", "", []string{"f"}},
			{"/names/dir/f", "g", []string{"g"}},
		} {
			names := t.tarNames(b, c.path, box.PackOptions{Name: c.name})
			if !slices.Equal(names, c.want) {
				t.Errorf("%s as %q: %q, want %q", c.path, c.name, names, c.want)
			}
		}
		if names := t.tarNames(b, "/names/dir", box.PackOptions{Name: "."}); !slices.Contains(names, "f") {
			t.Errorf("without top entry: %q", names)
		}
	})
	s.rule("Owner", "without KeepOwner, what is copied in belongs to the user named", func(t *T) {
		t.ok(b.Mkdir(t.ctx, "/owned", 0o755), "Mkdir")
		t.ok(b.CopyIn(t.ctx, "/owned", tarOf(t, tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, Uid: 5, Gid: 5}), box.UnpackOptions{User: "77:88"}), "CopyIn")
		info, err := b.Stat(t.ctx, "/owned/f")
		t.ok(err, "Stat")
		if info.UID != 77 || info.GID != 88 {
			t.Errorf("owner %d:%d", info.UID, info.GID)
		}
	})
	s.rule("Hostile", "a hostile tar changes nothing outside of its directory", func(t *T) {
		t.sh(b, "mkdir -p /jail/in /outside; echo safe > /outside/f")
		for _, headers := range [][]tar.Header{
			{{Name: "/outside/abs", Typeflag: tar.TypeReg, Mode: 0o644}},
			{{Name: "../../outside/up", Typeflag: tar.TypeReg, Mode: 0o644}},
			{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/outside"}, {Name: "l/through", Typeflag: tar.TypeReg, Mode: 0o644}},
			{{Name: "h", Typeflag: tar.TypeLink, Linkname: "/outside/f"}, {Name: "h", Typeflag: tar.TypeReg, Mode: 0o644}},
			{{Name: "h2", Typeflag: tar.TypeLink, Linkname: "../../outside/f"}},
		} {
			// Refused or confined: both are right.
			_ = b.CopyIn(t.ctx, "/jail/in", tarOf(t, headers...), box.UnpackOptions{})
			entries, err := b.ReadDir(t.ctx, "/outside")
			t.ok(err, "ReadDir")
			got, err := b.ReadFile(t.ctx, "/outside/f")
			t.ok(err, "ReadFile")
			if len(entries) != 1 || string(got) != "safe\n" {
				t.Errorf("%s %s: outside is now %v, f is %q", headers[0].Name, headers[0].Linkname, entries, got)
			}
		}
	})
	s.rule("Broken", "a tar that is cut, or none, is an error", func(t *T) {
		t.ok(b.Mkdir(t.ctx, "/broken", 0o755), "Mkdir")
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		t.ok(w.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1 << 20}), "WriteHeader")
		buf.Write(make([]byte, 1000))
		if err := b.CopyIn(t.ctx, "/broken", &buf, box.UnpackOptions{}); err == nil {
			t.Error("a cut tar was taken")
		}
		if err := b.CopyIn(t.ctx, "/broken", bytes.NewReader(noise(9, 2000)), box.UnpackOptions{}); err == nil {
			t.Error("noise was taken")
		}
		t.is(b.CopyIn(t.ctx, "/no/such/dir", tarOf(t), box.UnpackOptions{}), fs.ErrNotExist, "CopyIn to nowhere")
		_, err := b.CopyOut(t.ctx, "/no/such/file", box.PackOptions{})
		t.is(err, fs.ErrNotExist, "CopyOut of nothing")
	})
	s.rule("CopyFS", "a tree of the host is copied in", func(t *T) {
		t.ok(b.Mkdir(t.ctx, "/copied", 0o755), "Mkdir")
		tree := fstest.MapFS{"a": {Data: []byte("1"), Mode: 0o644}, "d/b": {Data: []byte("2"), Mode: 0o755}}
		t.ok(b.CopyFS(t.ctx, "/copied", tree), "CopyFS")
		if got := t.sh(b, "cat /copied/a /copied/d/b"); got != "12" {
			t.Errorf("read %q", got)
		}
	})
}

func (t *T) tarNames(b *box.Box, path string, opts box.PackOptions) []string {
	t.Helper()
	r, err := b.CopyOut(t.ctx, path, opts)
	t.ok(err, "CopyOut")
	defer r.Close()
	names := make(map[string]bool)
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return slices.Sorted(maps.Keys(names))
		}
		t.ok(err, "tar")
		names[strings.TrimPrefix(strings.TrimSuffix(h.Name, "/"), "./")] = true
	}
}

func tarOf(t *T, headers ...tar.Header) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		t.ok(w.WriteHeader(&h), "WriteHeader")
	}
	t.ok(w.Close(), "Close")
	return &buf
}

func dial(s *suite) {
	if s.h.Serve == nil {
		s.Skip("this driver has no server to dial")
	}
	b := s.box()
	var network, addr string
	s.rule("Serve", "a server in the box can be started", func(t *T) { network, addr = t.suite.h.Serve(t.T, t.suite.driver, b) })
	if addr == "" {
		return
	}
	s.rule("Echo", "bytes go both ways, and each side can end its own direction", func(t *T) {
		c, err := b.DialContext(t.ctx, network, addr)
		t.ok(err, "Dial")
		defer c.Close()
		data := noise(10, 3<<20)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Write(data); err != nil {
				t.Errorf("Write: %v", err)
			}
			closeWrite(t, c)
		})
		got, err := io.ReadAll(c)
		wg.Wait()
		t.ok(err, "ReadAll")
		t.same("echo", got, data)
	})
	s.rule("ContextOfDialOnly", "the context bounds the dialing, not the connection", func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		c, err := b.DialContext(ctx, network, addr)
		t.ok(err, "Dial")
		defer c.Close()
		cancel()
		_, err = c.Write([]byte("still here"))
		t.ok(err, "Write")
		_, err = io.ReadFull(c, make([]byte, 10))
		t.ok(err, "Read")
	})
	s.rule("Deadline", "a read deadline passes, and can be moved", func(t *T) {
		c, err := b.DialContext(t.ctx, network, addr)
		t.ok(err, "Dial")
		defer c.Close()
		t.ok(c.SetReadDeadline(time.Now().Add(20*time.Millisecond)), "SetReadDeadline")
		_, err = c.Read(make([]byte, 1))
		t.is(err, os.ErrDeadlineExceeded, "Read")
		t.ok(c.SetReadDeadline(time.Time{}), "SetReadDeadline")
		_, err = c.Write([]byte("x"))
		t.ok(err, "Write")
		_, err = io.ReadFull(c, make([]byte, 1))
		t.ok(err, "Read")
	})
	s.rule("Parallel", "many connections at once do not mix", func(t *T) {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				c, err := b.DialContext(t.ctx, network, addr)
				if err != nil {
					t.Errorf("Dial: %v", err)
					return
				}
				defer c.Close()
				data := noise(uint64(100+i), 100_000)
				go func() { _, _ = c.Write(data) }()
				got := make([]byte, len(data))
				if _, err := io.ReadFull(c, got); err != nil {
					t.Errorf("Read: %v", err)
				}
				t.same("echo", got, data)
			})
		}
		wg.Wait()
	})
	s.rule("Forward", "a listener on the host leads into the box, and all ends with its context", func(t *T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		t.ok(err, "Listen")
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- b.Forward(ctx, l, network, addr) }()
		c, err := net.Dial("tcp", l.Addr().String())
		t.ok(err, "Dial")
		defer c.Close()
		_, err = c.Write([]byte("through"))
		t.ok(err, "Write")
		buf := make([]byte, 7)
		_, err = io.ReadFull(c, buf)
		t.ok(err, "Read")
		if string(buf) != "through" {
			t.Errorf("got %q", buf)
		}
		cancel()
		t.ok(<-done, "Forward")
		if _, err := c.Read(buf); err == nil {
			t.Error("the connection outlived Forward")
		}
	})
	s.rule("Refused", "where nothing listens, dialing fails at once, and an address that is none is Invalid", func(t *T) {
		_, err := b.DialContext(t.ctx, "tcp", "localhost:9")
		if err == nil || errors.Is(err, box.ErrInvalid) {
			t.Errorf("a closed port: %v", err)
		}
		_, err = b.DialContext(t.ctx, "unix", "/no/such/socket")
		if err == nil || errors.Is(err, box.ErrInvalid) {
			t.Errorf("a missing socket: %v", err)
		}
		_, err = b.DialContext(t.ctx, "tcp", "nonsense")
		t.is(err, box.ErrInvalid, "no port")
		_, err = b.DialContext(t.ctx, "udp", "localhost:1")
		t.is(err, box.ErrInvalid, "udp")
	})
	s.rule("Transport", "DialContext has the shape that an http.Transport takes", func(t *T) {
		tr := &http.Transport{DialContext: b.DialContext}
		defer tr.CloseIdleConnections()
	})
}
