//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/guest/wire"
)

// oddNames are names that everything must take.
var oddNames = []string{
	"plain", "with space", "-leading-dash", "quote'\"`$x", "new\nline", "\xff\xfeinvalid", "tab\tand\\backslash",
	"ünïcödé", "*?[glob]", "...", " ", strings.Repeat("n", 255),
}

func (r *rig) write(h *hutchv1.WriteHeader, chunks ...string) (*hutchv1.WriteResponse, error) {
	s := r.files.Write(testContext(r.t))
	if err := s.Send(&hutchv1.WriteRequest{Header: h}); err == nil {
		for _, c := range chunks {
			if err := s.Send(&hutchv1.WriteRequest{Data: []byte(c)}); err != nil {
				break
			}
		}
		_ = s.Send(&hutchv1.WriteRequest{Complete: true})
	}
	res, err := s.CloseAndReceive()
	if err != nil {
		return nil, wire.Decode(err)
	}
	return res.Msg, nil
}

func (r *rig) read(path string, offset, length int64) (*hutchv1.FileInfo, []byte, error) {
	s, err := r.files.Read(testContext(r.t), connect.NewRequest(&hutchv1.ReadRequest{Path: []byte(path), Offset: offset, Length: length}))
	if err != nil {
		return nil, nil, wire.Decode(err)
	}
	defer s.Close()
	var info *hutchv1.FileInfo
	var data []byte
	for first := true; s.Receive(); first = false {
		if first {
			info = s.Msg().GetInfo()
		}
		data = append(data, s.Msg().GetData()...)
	}
	return info, data, wire.Decode(s.Err())
}

func (r *rig) stat(path string, noFollow bool) (*hutchv1.FileInfo, error) {
	res, err := r.files.Stat(testContext(r.t), connect.NewRequest(&hutchv1.StatRequest{Path: []byte(path), NoFollow: noFollow}))
	if err != nil {
		return nil, wire.Decode(err)
	}
	return res.Msg.GetInfo(), nil
}

func (r *rig) readDir(path string) ([]string, error) {
	s, err := r.files.ReadDir(testContext(r.t), connect.NewRequest(&hutchv1.ReadDirRequest{Path: []byte(path)}))
	if err != nil {
		return nil, wire.Decode(err)
	}
	defer s.Close()
	var names []string
	for s.Receive() {
		for _, e := range s.Msg().GetEntries() {
			names = append(names, string(e.GetName()))
		}
	}
	return names, wire.Decode(s.Err())
}

func wantErrno(t *testing.T, err error, op string, path string, errno syscall.Errno) {
	t.Helper()
	pe, ok := errors.AsType[*fs.PathError](wire.Decode(err))
	if !ok || !errors.Is(pe.Err, errno) || pe.Op != op || pe.Path != path {
		t.Errorf("error %#v (%v), want %s %s: %v", err, err, op, path, errno)
	}
}

func TestFileOperationsOnOddNames(t *testing.T) {
	r := newRig(t, Config{})
	ctx := testContext(t)
	for _, name := range oddNames {
		t.Run(fmt.Sprintf("%.20q", name), func(t *testing.T) {
			r.t = t
			dir := filepath.Join(t.TempDir(), name)
			check := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			_, err := r.files.Mkdir(ctx, connect.NewRequest(&hutchv1.MkdirRequest{Path: []byte(dir), Mode: 0o750}))
			check(err)
			file := dir + "/" + name
			for _, atomic := range []bool{false, true} {
				_, err = r.write(&hutchv1.WriteHeader{Path: []byte(file), Mode: 0o604, Atomic: atomic}, "content", " of the file")
				check(err)
			}
			info, data, err := r.read(file, 0, 0)
			check(err)
			if string(data) != "content of the file" || string(info.GetName()) != name || info.GetSize() != 19 || info.GetMode() != unix.S_IFREG|0o604 {
				t.Errorf("read %q, info %v", data, info)
			}
			names, err := r.readDir(dir)
			check(err)
			if !slices.Equal(names, []string{name}) {
				t.Errorf("names %q", names)
			}
			_, err = r.files.Symlink(ctx, connect.NewRequest(&hutchv1.SymlinkRequest{Target: []byte(name), Path: []byte(dir + "/link")}))
			check(err)
			target, err := r.files.Readlink(ctx, connect.NewRequest(&hutchv1.ReadlinkRequest{Path: []byte(dir + "/link")}))
			check(err)
			real, err := r.files.Realpath(ctx, connect.NewRequest(&hutchv1.RealpathRequest{Path: []byte(dir + "/./link")}))
			check(err)
			wantReal, _ := filepath.EvalSymlinks(file)
			if string(target.Msg.GetTarget()) != name || string(real.Msg.GetPath()) != wantReal {
				t.Errorf("link %q, real path %q", target.Msg.GetTarget(), real.Msg.GetPath())
			}
			if fi, err := r.stat(dir+"/link", true); err != nil || string(fi.GetLink()) != name || fi.GetMode()&unix.S_IFMT != unix.S_IFLNK {
				t.Errorf("lstat %v, %v", fi, err)
			}
			_, err = r.files.Link(ctx, connect.NewRequest(&hutchv1.LinkRequest{OldPath: []byte(file), NewPath: []byte(dir + "/hard")}))
			check(err)
			_, err = r.files.Chmod(ctx, connect.NewRequest(&hutchv1.ChmodRequest{Path: []byte(file), Mode: 0o4711}))
			check(err)
			when := time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)
			_, err = r.files.Chtimes(ctx, connect.NewRequest(&hutchv1.ChtimesRequest{Path: []byte(file), Modified: timestamppb.New(when)}))
			check(err)
			fi, err := r.stat(file, false)
			check(err)
			if fi.GetMode()&0o7777 != 0o4711 || !fi.GetModified().AsTime().Equal(when) || fi.GetLinks() != 2 {
				t.Errorf("stat %v", fi)
			}
			_, err = r.files.Rename(ctx, connect.NewRequest(&hutchv1.RenameRequest{OldPath: []byte(file), NewPath: []byte(dir + "/x" + name[1:])}))
			check(err)
			_, err = r.files.Remove(ctx, connect.NewRequest(&hutchv1.RemoveRequest{Path: []byte(dir + "/hard")}))
			check(err)
			_, err = r.files.Remove(ctx, connect.NewRequest(&hutchv1.RemoveRequest{Path: []byte(dir)}))
			wantErrno(t, err, "remove", dir, syscall.ENOTEMPTY)
			_, err = r.files.Remove(ctx, connect.NewRequest(&hutchv1.RemoveRequest{Path: []byte(dir), Recursive: true}))
			check(err)
			_, err = r.files.Remove(ctx, connect.NewRequest(&hutchv1.RemoveRequest{Path: []byte(dir), Recursive: true}))
			check(err)
			_, err = r.stat(dir, false)
			wantErrno(t, err, "stat", dir, syscall.ENOENT)
		})
	}
}

func TestFileErrors(t *testing.T) {
	r := newRig(t, Config{})
	ctx := testContext(t)
	missing := r.dir + "/missing"
	if err := unix.Mkfifo(r.dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{r.dir + "/fifo", "/dev/null"} {
		_, _, err := r.read(path, 0, 0)
		wantKind(t, err, box.Invalid)
		_, err = r.write(&hutchv1.WriteHeader{Path: []byte(path)}, "x")
		wantKind(t, err, box.Invalid)
		_, err = r.write(&hutchv1.WriteHeader{Path: []byte(path), Atomic: true}, "x")
		wantKind(t, err, box.Invalid)
		s, _ := r.files.Open(ctx, connect.NewRequest(&hutchv1.OpenRequest{Path: []byte(path)}))
		s.Receive()
		wantKind(t, s.Err(), box.Invalid)
		s.Close()
	}
	_, _, err := r.read(missing, 0, 0)
	wantErrno(t, err, "read", missing, syscall.ENOENT)
	_, _, err = r.read(r.dir, 0, 0)
	wantErrno(t, err, "read", r.dir, syscall.EISDIR)
	_, _, err = r.read(r.dir, -1, 0)
	wantKind(t, err, box.Invalid)
	_, err = r.readDir("/etc/passwd")
	wantErrno(t, err, "readdir", "/etc/passwd", syscall.ENOTDIR)
	_, err = r.write(&hutchv1.WriteHeader{Path: []byte(r.dir)}, "x")
	wantErrno(t, err, "write", r.dir, syscall.EISDIR)
	_, err = r.write(&hutchv1.WriteHeader{Path: []byte(missing + "/a/b")}, "x")
	wantErrno(t, err, "write", missing+"/a/b", syscall.ENOENT)
	_, err = r.files.Mkdir(ctx, connect.NewRequest(&hutchv1.MkdirRequest{Path: []byte(r.dir)}))
	wantErrno(t, err, "mkdir", r.dir, syscall.EEXIST)
	_, err = r.files.Rename(ctx, connect.NewRequest(&hutchv1.RenameRequest{OldPath: []byte(missing), NewPath: []byte(r.dir + "/x")}))
	wantErrno(t, err, "rename", missing, syscall.ENOENT)
	_, err = r.files.Readlink(ctx, connect.NewRequest(&hutchv1.ReadlinkRequest{Path: []byte(r.dir)}))
	wantErrno(t, err, "readlink", r.dir, syscall.EINVAL)
	_, err = r.files.Remove(ctx, connect.NewRequest(&hutchv1.RemoveRequest{Path: []byte("/"), Recursive: true}))
	wantKind(t, err, box.Invalid)
	_, err = r.files.Stat(ctx, connect.NewRequest(&hutchv1.StatRequest{}))
	wantKind(t, err, box.Invalid)
	_, err = r.files.Stat(ctx, connect.NewRequest(&hutchv1.StatRequest{Path: []byte("a\x00b")}))
	wantKind(t, err, box.Invalid)
	if err := os.Symlink("loop", r.dir+"/loop"); err != nil {
		t.Fatal(err)
	}
	_, err = r.files.Realpath(ctx, connect.NewRequest(&hutchv1.RealpathRequest{Path: []byte(r.dir + "/loop")}))
	wantErrno(t, err, "realpath", r.dir+"/loop", syscall.ELOOP)
}

func TestReadRanges(t *testing.T) {
	r := newRig(t, Config{})
	data := make([]byte, 3<<20+17)
	rand.New(rand.NewSource(2)).Read(data)
	if err := os.WriteFile(r.dir+"/big", data, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ offset, length, from, to int64 }{
		{0, 0, 0, int64(len(data))},
		{0, 1, 0, 1},
		{100, 0, 100, int64(len(data))},
		{1 << 20, 1 << 20, 1 << 20, 2 << 20},
		{int64(len(data)) - 1, 100, int64(len(data)) - 1, int64(len(data))},
		{int64(len(data)) + 5, 100, 0, 0},
	} {
		info, got, err := r.read("big", tt.offset, tt.length) // relative to the box's directory
		if err != nil || !bytes.Equal(got, data[tt.from:tt.to]) || info.GetSize() != int64(len(data)) {
			t.Errorf("range %d+%d: %d bytes, %v", tt.offset, tt.length, len(got), err)
		}
	}
	// Files of /proc have no size, and content all the same.
	if _, got, err := r.read("/proc/self/status", 0, 0); err != nil || !bytes.Contains(got, []byte("Pid:")) {
		t.Errorf("/proc/self/status: %q, %v", got, err)
	}
}

func TestReadDirMany(t *testing.T) {
	r := newRig(t, Config{})
	var want []string
	for i := range 1203 {
		name := fmt.Sprintf("f%04d", i)
		want = append(want, name)
		if err := os.WriteFile(r.dir+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.readDir(r.dir)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%d names, %v", len(got), err)
	}
}

func TestWriteModes(t *testing.T) {
	r := newRig(t, Config{})
	path := r.dir + "/new/dirs/file"
	content := func() string { b, _ := os.ReadFile(path); return string(b) }
	if _, err := r.write(&hutchv1.WriteHeader{Path: []byte(path), Parents: true, Sync: true}, "one\n"); err != nil {
		t.Fatal(err)
	}
	if fi, _ := os.Stat(path); fi.Mode() != 0o644 || content() != "one\n" {
		t.Errorf("new file: %v %q", fi.Mode(), content())
	}
	if fi, _ := os.Stat(r.dir + "/new"); fi.Mode().Perm() != 0o755 {
		t.Errorf("parent: %v", fi.Mode())
	}
	if _, err := r.write(&hutchv1.WriteHeader{Path: []byte(path), Append: true}, "two\n"); err != nil || content() != "one\ntwo\n" {
		t.Errorf("append: %q, %v", content(), err)
	}
	if res, err := r.write(&hutchv1.WriteHeader{Path: []byte(path)}, "x"); err != nil || content() != "x" || res.GetWritten() != 1 || res.GetInfo().GetSize() != 1 {
		t.Errorf("truncate: %q, %v, %v", content(), res, err)
	}
	for _, atomic := range []bool{false, true} {
		_, err := r.write(&hutchv1.WriteHeader{Path: []byte(path), Exclusive: true, Atomic: atomic}, "no")
		wantErrno(t, err, "write", path, syscall.EEXIST)
		fresh := fmt.Sprintf("%s-%t", path, atomic)
		if _, err := r.write(&hutchv1.WriteHeader{Path: []byte(fresh), Exclusive: true, Atomic: atomic}, "yes"); err != nil {
			t.Error(err)
		}
	}
	_, err := r.write(&hutchv1.WriteHeader{Path: []byte(path), Atomic: true, Append: true}, "no")
	wantKind(t, err, box.Invalid)
	_, err = r.write(&hutchv1.WriteHeader{Path: []byte(path), User: "nosuchuser"}, "no")
	wantKind(t, err, box.Invalid)
	if content() != "x" {
		t.Errorf("refused writes changed the file: %q", content())
	}
}

func TestAtomicWrite(t *testing.T) {
	r := newRig(t, Config{})
	if err := os.Mkdir(r.dir+"/d", 0o755); err != nil {
		t.Fatal(err)
	}
	path := r.dir + "/d/file"
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 12, 34); err != nil {
			t.Fatal(err)
		}
	}
	hasXattr := unix.Setxattr(path, "user.note", []byte("kept"), 0) == nil
	if err := os.Symlink("d/file", r.dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("d/dangling", r.dir+"/dangling"); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	if _, err := r.write(&hutchv1.WriteHeader{Path: []byte(r.dir + "/link"), Atomic: true, Mode: 0o777, Sync: true}, "new"); err != nil {
		t.Fatal(err)
	}
	after, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	bs, as := before.Sys().(*syscall.Stat_t), after.Sys().(*syscall.Stat_t)
	if b, _ := os.ReadFile(path); string(b) != "new" || after.Mode() != 0o640 || as.Uid != bs.Uid || as.Gid != bs.Gid || as.Ino == bs.Ino {
		t.Errorf("%q, mode %v, owner %d:%d", b, after.Mode(), as.Uid, as.Gid)
	}
	if target, err := os.Readlink(r.dir + "/link"); err != nil || target != "d/file" {
		t.Errorf("the link became %q, %v", target, err)
	}
	if hasXattr {
		if v, err := getXattr(path, "user.note"); err != nil || string(v) != "kept" {
			t.Errorf("attribute %q, %v", v, err)
		}
	}
	if _, err := r.write(&hutchv1.WriteHeader{Path: []byte(r.dir + "/dangling"), Atomic: true}, "made"); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(r.dir + "/d/dangling"); string(b) != "made" {
		t.Errorf("through a link to nothing: %q", b)
	}

	// A stream that is cut, in any way, changes nothing and leaves nothing.
	names := func() []string { l, _ := r.readDir(r.dir + "/d"); return l }
	want := names()
	for name, cut := range map[string]func(s *connect.ClientStreamForClient[hutchv1.WriteRequest, hutchv1.WriteResponse], cancel func()){
		"no completion": func(s *connect.ClientStreamForClient[hutchv1.WriteRequest, hutchv1.WriteResponse], cancel func()) {
			_, err := s.CloseAndReceive()
			wantKind(t, err, box.Canceled)
		},
		"canceled": func(s *connect.ClientStreamForClient[hutchv1.WriteRequest, hutchv1.WriteResponse], cancel func()) {
			eventually(t, "the temporary file is there", func() bool { return len(names()) == len(want)+1 })
			cancel()
			_, _ = s.CloseAndReceive()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			s := r.files.Write(ctx)
			if err := s.Send(&hutchv1.WriteRequest{Header: &hutchv1.WriteHeader{Path: []byte(path), Atomic: true}}); err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&hutchv1.WriteRequest{Data: []byte("half")}); err != nil {
				t.Fatal(err)
			}
			cut(s, cancel)
			eventually(t, "nothing is left", func() bool { return slices.Equal(names(), want) })
			if b, _ := os.ReadFile(path); string(b) != "new" {
				t.Errorf("the file has %q", b)
			}
		})
	}
	// A reader sees old or new, never half.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 50 {
			if _, err := r.write(&hutchv1.WriteHeader{Path: []byte(path), Atomic: true}, strings.Repeat(fmt.Sprint(i%10), 100000)); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 200 {
		if b, err := os.ReadFile(path); err != nil || len(b) != 3 && (len(b) != 100000 || strings.Trim(string(b), string(b[:1])) != "") {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
	}
	<-done
}

func TestHandles(t *testing.T) {
	r := newRig(t, Config{})
	ctx := testContext(t)
	open := func(flags int, path string) (uint64, *connect.ServerStreamForClient[hutchv1.OpenResponse], error) {
		s, err := r.files.Open(ctx, connect.NewRequest(&hutchv1.OpenRequest{Path: []byte(path), Flags: uint32(flags), Mode: 0o600}))
		if err != nil {
			t.Fatal(err)
		}
		if !s.Receive() {
			defer s.Close()
			return 0, nil, wire.Decode(s.Err())
		}
		return s.Msg().GetHandle(), s, nil
	}
	path := r.dir + "/f"
	h, s, err := open(unix.O_RDWR|unix.O_CREAT, path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := r.files.WriteAt(ctx, connect.NewRequest(&hutchv1.WriteAtRequest{Handle: h, Offset: 5, Data: []byte("hello")}))
	if err != nil || w.Msg.GetWritten() != 5 {
		t.Fatalf("%v %v", w, err)
	}
	read, err := r.files.ReadAt(ctx, connect.NewRequest(&hutchv1.ReadAtRequest{Handle: h, Offset: 3, Length: 100}))
	if err != nil || string(read.Msg.GetData()) != "\x00\x00hello" || !read.Msg.GetEof() {
		t.Errorf("%v %v", read, err)
	}
	read, err = r.files.ReadAt(ctx, connect.NewRequest(&hutchv1.ReadAtRequest{Handle: h, Offset: 5, Length: 5}))
	if err != nil || string(read.Msg.GetData()) != "hello" || read.Msg.GetEof() {
		t.Errorf("%v %v", read, err)
	}
	if _, err = r.files.Truncate(ctx, connect.NewRequest(&hutchv1.TruncateRequest{Handle: h, Size: 7})); err != nil {
		t.Error(err)
	}
	sync, err := r.files.Sync(ctx, connect.NewRequest(&hutchv1.SyncRequest{Handle: h}))
	if err != nil || sync.Msg.GetInfo().GetSize() != 7 || sync.Msg.GetInfo().GetMode() != unix.S_IFREG|0o600 {
		t.Errorf("%v %v", sync, err)
	}
	s.Close()
	eventually(t, "the handle ends with its stream", func() bool {
		_, err := r.files.Sync(ctx, connect.NewRequest(&hutchv1.SyncRequest{Handle: h}))
		return box.KindOf(wire.Decode(err)) == box.NotFound
	})
	h, s, err = open(unix.O_WRONLY|unix.O_APPEND, path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err = r.files.WriteAt(ctx, connect.NewRequest(&hutchv1.WriteAtRequest{Handle: h, Data: []byte("end"), Append: true})); err != nil {
		t.Error(err)
	}
	_, err = r.files.WriteAt(ctx, connect.NewRequest(&hutchv1.WriteAtRequest{Handle: h, Data: []byte("end")}))
	wantKind(t, err, box.Invalid)
	if b, _ := os.ReadFile(path); string(b) != "\x00\x00\x00\x00\x00heend" {
		t.Errorf("content %q", b)
	}
	_, _, err = open(unix.O_RDONLY|unix.O_DIRECTORY, path)
	wantKind(t, err, box.Invalid)
	_, _, err = open(unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, path)
	wantErrno(t, err, "open", path, syscall.EEXIST)
	_, _, err = open(unix.O_RDONLY, path+"missing")
	wantErrno(t, err, "open", path+"missing", syscall.ENOENT)
}

// What the Files service creates belongs to the box's user.
func TestFilesBelongToUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	r := newRig(t, Config{User: "1234:5678"})
	ctx := testContext(t)
	want := func(path string) {
		t.Helper()
		fi, err := r.stat(path, true)
		if err != nil || fi.GetUid() != 1234 || fi.GetGid() != 5678 {
			t.Errorf("%s: %v, %v", path, fi, err)
		}
	}
	for _, atomic := range []bool{true, false} {
		path := fmt.Sprintf("%s/p%t/q/file", r.dir, atomic)
		if _, err := r.write(&hutchv1.WriteHeader{Path: []byte(path), Parents: true, Atomic: atomic, Mode: 0o4755}, "x"); err != nil {
			t.Fatal(err)
		}
		want(path)
		want(filepath.Dir(path))
		want(filepath.Dir(filepath.Dir(path)))
		if fi, _ := r.stat(path, false); fi.GetMode()&0o7777 != 0o4755 {
			t.Errorf("mode %o", fi.GetMode())
		}
	}
	if _, err := r.files.Mkdir(ctx, connect.NewRequest(&hutchv1.MkdirRequest{Path: []byte(r.dir + "/m/n"), Parents: true})); err != nil {
		t.Fatal(err)
	}
	want(r.dir + "/m")
	want(r.dir + "/m/n")
	if _, err := r.files.Symlink(ctx, connect.NewRequest(&hutchv1.SymlinkRequest{Target: []byte("x"), Path: []byte(r.dir + "/s")})); err != nil {
		t.Fatal(err)
	}
	want(r.dir + "/s")
	if _, err := r.write(&hutchv1.WriteHeader{Path: []byte(r.dir + "/daemons"), User: "daemon"}, "x"); err != nil {
		t.Fatal(err)
	}
	if fi, _ := r.stat(r.dir+"/daemons", false); fi.GetUid() != 1 || fi.GetUser() != "daemon" {
		t.Errorf("named owner: %v", fi)
	}
	if _, err := r.files.Chown(ctx, connect.NewRequest(&hutchv1.ChownRequest{Path: []byte(r.dir + "/daemons"), Uid: -1, Gid: 42})); err != nil {
		t.Fatal(err)
	}
	if fi, _ := r.stat(r.dir+"/daemons", false); fi.GetUid() != 1 || fi.GetGid() != 42 {
		t.Errorf("after chown: %v", fi)
	}
}
