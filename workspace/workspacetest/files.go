package workspacetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/hutch-sandbox/hutch/workspace"
)

// fileRules are about files and directories.
var fileRules = []rule{
	{name: "F01", needs: files, sentence: "a file of 8 MiB comes back as it was",
		run: func(r *R) {
			name := path.Join(r.dir(), "big")
			want := noise(1, 8<<20)
			r.write(name, want)
			r.same("content", r.read(name), want)
			e, err := r.ws.Stat(r.ctx, name)
			r.ok(err, "Stat")
			if e.Size >= 0 {
				r.equal("size", e.Size, int64(len(want)))
			}
		}},
	{name: "F02", needs: files, sentence: "every byte survives, parents are made, a second write replaces",
		run: func(r *R) {
			name := path.Join(r.dir(), "a/b/c/file")
			all := make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			for _, want := range [][]byte{{0, 0xff, '\n', '\r', 0}, nil, all, []byte("short"), bytes.Repeat(all, 1000), []byte("\n\n")} {
				r.write(name, want)
				r.same("content", r.read(name), want)
			}
			r.equal("entries", strings.Join(r.names(path.Dir(name)), " "), "file")
		}},
	{name: "F03", needs: files, sentence: "Exists says true for a file and a directory, false for nothing",
		run: func(r *R) {
			dir := r.dir()
			r.write(path.Join(dir, "file"), nil)
			for name, want := range map[string]bool{".": true, "file": true, "absent": false, "file/below": false, "absent/below": false} {
				got, err := r.ws.Exists(r.ctx, path.Join(dir, name))
				r.ok(err, "Exists "+name)
				r.equal("existence of "+name, got, want)
			}
		}},
	{name: "F04", needs: files, sentence: "Stat and ReadDir give names, absolute paths, kinds and true sizes, of direct entries in order",
		run: func(r *R) {
			dir := r.dir()
			r.write(path.Join(dir, "b"), []byte("12345"))
			r.write(path.Join(dir, "a/inner"), []byte("x"))
			r.write(path.Join(dir, ".c"), nil)
			check := func(e workspace.Entry, name string, isDir bool, size int64) {
				r.equal("name", e.Name, name)
				r.equal("path of "+name, e.Path, path.Join(dir, name))
				r.equal("kind of "+name, e.Dir, isDir)
				if !isDir && e.Size >= 0 {
					r.equal("size of "+name, e.Size, size)
				}
			}
			for name, size := range map[string]int64{"b": 5, ".c": 0, "a": -1} {
				e, err := r.ws.Stat(r.ctx, path.Join(dir, name))
				r.ok(err, "Stat "+name)
				check(e, name, name == "a", size)
			}
			entries, err := r.ws.ReadDir(r.ctx, dir)
			r.ok(err, "ReadDir")
			if len(entries) != 3 {
				r.Fatalf("entries are %v", entries)
			}
			check(entries[0], ".c", false, 0)
			check(entries[1], "a", true, -1)
			check(entries[2], "b", false, 5)
			rel, err := r.ws.Stat(r.ctx, r.name+"/../"+r.name+"/b")
			r.ok(err, "Stat of a relative path")
			check(rel, "b", false, 5)
			empty := path.Join(dir, "empty")
			r.ok(r.ws.MkdirAll(r.ctx, empty), "MkdirAll")
			r.equal("entries of an empty directory", len(r.names(empty)), 0)
		}},
	{name: "F05", needs: files, sentence: "MkdirAll makes parents, and a directory that exists is no error",
		run: func(r *R) {
			dir := path.Join(r.dir(), "a/b/c")
			r.ok(r.ws.MkdirAll(r.ctx, dir), "MkdirAll")
			r.write(path.Join(dir, "kept"), nil)
			r.ok(r.ws.MkdirAll(r.ctx, dir), "MkdirAll again")
			r.ok(r.ws.MkdirAll(r.ctx, "/"), "MkdirAll of the root")
			r.equal("entries", strings.Join(r.names(dir), " "), "kept")
		}},
	{name: "F06", needs: both, sentence: "commands and file operations see one file system",
		run: func(r *R) {
			dir := r.dir()
			r.write(path.Join(dir, "f"), []byte("from files\n"))
			r.equal("what the command reads", r.sh(dir, "cat f; echo from a command > f; mkdir d; echo x > d/g"), "from files\n")
			r.same("what ReadFile reads", r.read(path.Join(dir, "f")), []byte("from a command\n"))
			r.equal("entries", strings.Join(r.names(dir), " "), "d f")
			r.ok(r.ws.Remove(r.ctx, path.Join(dir, "d")), "Remove")
			r.sh(dir, "[ ! -e d ]")
		}},
	{name: "F07", needs: files, sentence: "a missing path is fs.ErrNotExist in an *fs.PathError, and not ErrWorkspace",
		run: func(r *R) {
			for _, below := range []string{"absent", "absent/below"} {
				name := path.Join(r.dir(), below)
				for op, err := range map[string]error{
					"ReadFile": second(r.ws.ReadFile(r.ctx, name)), "Stat": second(r.ws.Stat(r.ctx, name)),
					"ReadDir": second(r.ws.ReadDir(r.ctx, name)), "Remove": r.ws.Remove(r.ctx, name), "Open": second(r.ws.Open(r.ctx, name, 0)),
				} {
					r.fault(err, syscall.ENOENT, op+" "+below)
					r.is(err, fs.ErrNotExist, op)
				}
			}
		}},
	{name: "F08", needs: files, sentence: "a directory where a file is wanted is EISDIR, the reverse ENOTDIR",
		run: func(r *R) {
			dir := r.dir()
			file, sub := path.Join(dir, "file"), path.Join(dir, "sub")
			r.write(file, []byte("x"))
			r.ok(r.ws.MkdirAll(r.ctx, sub), "MkdirAll")
			r.fault(second(r.ws.ReadFile(r.ctx, sub)), syscall.EISDIR, "ReadFile of a directory")
			r.fault(second(r.ws.Open(r.ctx, sub, 0)), syscall.EISDIR, "Open of a directory")
			r.fault(r.ws.WriteFile(r.ctx, sub, nil), syscall.EISDIR, "WriteFile to a directory")
			r.fault(r.ws.WriteFile(r.ctx, "/", nil), syscall.EISDIR, "WriteFile to the root")
			r.fault(second(r.ws.ReadDir(r.ctx, file)), syscall.ENOTDIR, "ReadDir of a file")
			r.fault(second(r.ws.Stat(r.ctx, file+"/below")), syscall.ENOTDIR, "Stat below a file")
			r.fault(second(r.ws.ReadFile(r.ctx, file+"/below")), syscall.ENOTDIR, "ReadFile below a file")
			r.equal("entries", strings.Join(r.names(dir), " "), "file sub")
		}},
	{name: "F10", needs: both, limits: noShell, sentence: "a pipe or device is refused, for reading and writing, and nothing waits",
		run: func(r *R) {
			dir := r.dir()
			r.sh(dir, "mkfifo pipe")
			for _, name := range []string{path.Join(dir, "pipe"), "/dev/null"} {
				for op, err := range map[string]error{
					"ReadFile": second(r.ws.ReadFile(r.ctx, name)), "Open": second(r.ws.Open(r.ctx, name, 0)),
					"WriteFile": r.ws.WriteFile(r.ctx, name, []byte("x")),
				} {
					if _, ok := errors.AsType[*fs.PathError](err); !ok || errors.Is(err, fs.ErrNotExist) {
						r.Errorf("%s of %s: error is %v, want another *fs.PathError", op, name, err)
					}
				}
				if ok, err := r.ws.Exists(r.ctx, name); !ok || err != nil {
					r.Errorf("Exists of %s: %v, %v", name, ok, err)
				}
			}
			r.sh(dir, "[ -p pipe ] && [ -c /dev/null ]")
			r.equal("entries", strings.Join(r.names(dir), " "), "pipe")
		}},
	{name: "F11", needs: both, limits: []Limit{PermissionsIgnored, NoShell}, sentence: "what is forbidden is fs.ErrPermission, and never missing or empty",
		run: func(r *R) {
			dir := r.dir()
			r.write(path.Join(dir, "file"), []byte("x"))
			r.write(path.Join(dir, "sub/inner"), []byte("x"))
			r.sh(dir, "chmod 000 file sub")
			file, sub := path.Join(dir, "file"), path.Join(dir, "sub")
			r.fault(second(r.ws.ReadFile(r.ctx, file)), syscall.EACCES, "ReadFile")
			r.is(r.ws.WriteFile(r.ctx, file, nil), fs.ErrPermission, "WriteFile")
			r.fault(second(r.ws.ReadDir(r.ctx, sub)), syscall.EACCES, "ReadDir")
			r.fault(second(r.ws.ReadFile(r.ctx, sub+"/inner")), syscall.EACCES, "ReadFile below")
			r.is(r.ws.WriteFile(r.ctx, sub+"/new", nil), fs.ErrPermission, "WriteFile below")
			r.sh(dir, "chmod 755 sub; chmod 644 file")
		}},
	{name: "F12", needs: files, sentence: "a file that is used as a parent is ENOTDIR",
		run: func(r *R) {
			dir := r.dir()
			r.write(path.Join(dir, "file"), []byte("x"))
			r.fault(r.ws.WriteFile(r.ctx, path.Join(dir, "file/below"), nil), syscall.ENOTDIR, "WriteFile")
			r.fault(r.ws.WriteFile(r.ctx, path.Join(dir, "file/a/b"), nil), syscall.ENOTDIR, "WriteFile further below")
			r.fault(r.ws.MkdirAll(r.ctx, path.Join(dir, "file/a/b")), syscall.ENOTDIR, "MkdirAll")
			r.same("the file", r.read(path.Join(dir, "file")), []byte("x"))
		}},
	{name: "F13", needs: files, sentence: "MkdirAll over a file is fs.ErrExist",
		run: func(r *R) {
			name := path.Join(r.dir(), "file")
			r.write(name, []byte("x"))
			err := r.ws.MkdirAll(r.ctx, name)
			r.fault(err, syscall.EEXIST, "MkdirAll")
			r.is(err, fs.ErrExist, "MkdirAll")
		}},
	{name: "F14", needs: files, sentence: "Remove removes a file, and a directory with all in it",
		run: func(r *R) {
			dir := r.dir()
			r.write(path.Join(dir, "file"), nil)
			r.write(path.Join(dir, "tree/a/b/c"), nil)
			r.write(path.Join(dir, "kept"), nil)
			r.ok(r.ws.Remove(r.ctx, path.Join(dir, "file")), "Remove")
			r.ok(r.ws.Remove(r.ctx, path.Join(dir, "tree")), "Remove of a tree")
			r.equal("entries", strings.Join(r.names(dir), " "), "kept")
		}},
	{name: "F15", needs: files, sentence: "the working directory and those above it are not removed: ErrInvalid",
		run: func(r *R) {
			wd, err := r.ws.WorkingDir(r.ctx)
			r.ok(err, "WorkingDir")
			r.write(path.Join(r.dir(), "kept"), nil)
			for _, name := range []string{".", "", "./", r.name + "/..", wd, path.Dir(wd), "/", wd + "/" + r.name + "/../.", "/.."} {
				err := r.ws.Remove(r.ctx, name)
				r.is(err, workspace.ErrInvalid, fmt.Sprintf("Remove %q", name))
				r.isNot(err, workspace.ErrWorkspace, fmt.Sprintf("Remove %q", name))
			}
			r.equal("entries", strings.Join(r.names(r.name), " "), "kept")
		}},
	{name: "F20", needs: both, limits: noShell, sentence: "a write keeps the mode of a file that exists, and makes a new one readable",
		run: func(r *R) {
			dir := r.dir()
			for _, mode := range []string{"755", "600", "640"} {
				r.write(path.Join(dir, mode), []byte("old"))
				r.sh(dir, "chmod "+mode+" "+mode)
				before := r.sh(dir, "ls -l "+mode+" | cut -c1-10")
				r.write(path.Join(dir, mode), []byte("new"))
				r.equal("mode", r.sh(dir, "ls -l "+mode+" | cut -c1-10"), before)
				r.equal("content", r.sh(dir, "cat "+mode), "new")
			}
			r.write(path.Join(dir, "fresh"), nil)
			if got := r.sh(dir, "ls -l fresh | cut -c1-4"); got != "-rw-\n" {
				r.Errorf("mode of a new file begins with %q", got)
			}
			r.sh(dir, "[ ! -x fresh ]")
		}},
	{name: "F21", needs: files, sentence: "a write that fails or is given up leaves the old content, and no other files",
		run: func(r *R) {
			dir := r.dir()
			name := path.Join(dir, "file")
			r.write(name, []byte("old"))
			bad := errors.New("source failed")
			err := r.ws.WriteFrom(r.ctx, name, io.MultiReader(bytes.NewReader(noise(2, 200<<10)), failReader{bad}))
			r.is(err, bad, "WriteFrom a reader that fails")
			ctx, cancel := context.WithCancel(r.ctx)
			defer cancel()
			err = r.ws.WriteFrom(ctx, name, io.MultiReader(bytes.NewReader(noise(2, 200<<10)), cancelReader(cancel), bytes.NewReader(noise(3, 200<<10))))
			r.is(err, context.Canceled, "WriteFrom with a context that ends")
			r.isNot(err, workspace.ErrWorkspace, "WriteFrom with a context that ends")
			r.is(r.ws.WriteFrom(r.ctx, path.Join(dir, "new"), failReader{bad}), bad, "WriteFrom to a new file")
			r.same("content", r.read(name), []byte("old"))
			r.eventually("the removal of temporary files", func() bool { return slices.Equal(r.names(dir), []string{"file"}) })
		}},
	{name: "F22", needs: files, sentence: "names may have every character",
		run: func(r *R) {
			r.oddNames([]string{"two words it's", "quo\"te $(touch x) `x`", "new\nline", "-rf", `back\slash`, "*", "[a]?{a,b}", "ä ö\t", " ", "#~%s%n", "end\n", "..."})
		}},
	{name: "F23", needs: files, limits: []Limit{BytesMangled}, sentence: "names may have every byte",
		run: func(r *R) { r.oddNames([]string{"\xff\xfe", "a\x80b", "\x01\x7f"}) }},
	{name: "F24", needs: both, limits: noShell, sentence: "a directory of 5,000 entries is listed whole",
		run: func(r *R) {
			dir := r.dir()
			r.sh(dir, "i=10000; while [ $i -lt 15000 ]; do : > entry-with-a-name-of-some-length-$i; i=$((i+1)); done")
			names := r.names(dir)
			r.equal("entries", len(names), 5000)
			for i, name := range names {
				if name != "entry-with-a-name-of-some-length-"+strconv.Itoa(10000+i) {
					r.Fatalf("entry %d is %q", i, name)
				}
			}
		}},
	{name: "F25", needs: files, sentence: "Open reads from any offset, and WriteFrom writes what it reads",
		run: func(r *R) {
			name := path.Join(r.dir(), "sub/file")
			want := noise(4, 300<<10)
			r.ok(r.ws.WriteFrom(r.ctx, name, io.MultiReader(bytes.NewReader(want[:1]), bytes.NewReader(want[1:100<<10]), bytes.NewReader(want[100<<10:]))), "WriteFrom")
			for _, at := range []int{0, 1, 64 << 10, 100_000, len(want) - 1, len(want)} {
				f, err := r.ws.Open(r.ctx, name, int64(at))
				r.ok(err, "Open")
				got, err := io.ReadAll(f)
				r.ok(err, "Read")
				r.same(fmt.Sprintf("content from %d", at), got, want[at:])
				r.ok(f.Close(), "Close")
			}
			f, err := r.ws.Open(r.ctx, name, 1<<30)
			r.ok(err, "Open beyond the end")
			if n, err := f.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				r.Errorf("Read beyond the end: %d, %v", n, err)
			}
			r.ok(f.Close(), "Close")
			f, err = r.ws.Open(r.ctx, name, 0)
			r.ok(err, "Open")
			if _, err := io.ReadFull(f, make([]byte, 10)); err != nil {
				r.Errorf("Read: %v", err)
			}
			r.ok(f.Close(), "Close before the end")
			_, err = r.ws.Open(r.ctx, name, -1)
			r.is(err, workspace.ErrInvalid, "Open at -1")
		}},
	{name: "F26", needs: both, limits: noShell, sentence: "a file too large to hold is ErrOutputLimit, and Open reads it in parts",
		run: func(r *R) {
			dir := r.dir()
			name := path.Join(dir, "huge")
			r.sh(dir, "printf begin > huge; dd if=/dev/null of=huge bs=1 seek=2147483648 count=0 2>/dev/null")
			_, err := r.ws.ReadFile(r.ctx, name)
			r.is(err, workspace.ErrOutputLimit, "ReadFile")
			f, err := r.ws.Open(r.ctx, name, 0)
			r.ok(err, "Open")
			part := make([]byte, 100_000)
			_, err = io.ReadFull(f, part)
			r.ok(err, "Read")
			r.same("the beginning", part, append([]byte("begin"), make([]byte, 100_000-5)...))
			r.ok(f.Close(), "Close")
			f, err = r.ws.Open(r.ctx, name, 2147483648-10)
			r.ok(err, "Open near the end")
			got, err := io.ReadAll(f)
			r.ok(err, "Read")
			r.equal("bytes near the end", len(got), 10)
			r.ok(f.Close(), "Close")
			r.sh(dir, "rm huge")
		}},
	{name: "F27", needs: files, sentence: "writes of one file at the same time leave one of them whole; of different files, all",
		run: func(r *R) {
			dir := r.dir()
			var wg sync.WaitGroup
			var all [][]byte
			for i := range 6 {
				data := bytes.Repeat([]byte{byte('a' + i)}, 150<<10)
				all = append(all, data)
				wg.Go(func() {
					if err := r.ws.WriteFile(r.ctx, path.Join(dir, "one"), data); err != nil {
						r.Errorf("WriteFile: %v", err)
					}
					if err := r.ws.WriteFile(r.ctx, path.Join(dir, "deep/down/"+strconv.Itoa(i)), data); err != nil {
						r.Errorf("WriteFile: %v", err)
					}
				})
			}
			wg.Wait()
			got := r.read(path.Join(dir, "one"))
			if !slices.ContainsFunc(all, func(data []byte) bool { return bytes.Equal(data, got) }) {
				r.Errorf("the file is none of those written: %d bytes", len(got))
			}
			for i, want := range all {
				r.same("file "+strconv.Itoa(i), r.read(path.Join(dir, "deep/down/"+strconv.Itoa(i))), want)
			}
			r.equal("entries", strings.Join(r.names(dir), " "), "deep one")
		}},
	{name: "F28", needs: files, sentence: "text is UTF-8 or an error, and line endings stay",
		run: func(r *R) {
			name := path.Join(r.dir(), "text")
			want := "\ufeffone\r\ntwo\nthree ä\u2028"
			r.ok(r.ws.WriteText(r.ctx, name, want), "WriteText")
			got, err := r.ws.ReadText(r.ctx, name)
			r.ok(err, "ReadText")
			r.equal("text", got, want)
			r.write(name, []byte("a\xffb"))
			_, err = r.ws.ReadText(r.ctx, name)
			r.is(err, workspace.ErrNotText, "ReadText of bytes")
		}},
	{name: "F29", needs: files, sentence: "a path with a NUL byte is ErrInvalid, and \"..\" of the root is the root",
		run: func(r *R) {
			for op, err := range map[string]error{
				"ReadFile": second(r.ws.ReadFile(r.ctx, "a\x00b")), "WriteFile": r.ws.WriteFile(r.ctx, "/a\x00b", nil),
				"Stat": second(r.ws.Stat(r.ctx, "\x00")), "Exists": second(r.ws.Exists(r.ctx, "\x00")), "Realpath": second(r.ws.Realpath(r.ctx, "\x00")),
			} {
				r.is(err, workspace.ErrInvalid, op)
			}
			got, err := r.ws.Resolve(r.ctx, "/a/../../../b/./c//d/")
			r.ok(err, "Resolve")
			r.equal("path", got, "/b/c/d")
			wd, err := r.ws.WorkingDir(r.ctx)
			r.ok(err, "WorkingDir")
			got, err = r.ws.Resolve(r.ctx, "x/../y")
			r.ok(err, "Resolve")
			r.equal("path", got, path.Join(wd, "y"))
		}},
}

// second drops the first of two results.
func second[T any](_ T, err error) error { return err }

// fault checks for a path fault.
func (r *R) fault(err error, want syscall.Errno, what string) {
	pe, ok := errors.AsType[*fs.PathError](err)
	if !ok || !errors.Is(err, want) {
		r.Errorf("%s: error is %v (%T), want an *fs.PathError with %q", what, err, err, want)
		return
	}
	if pe.Path == "" {
		r.Errorf("%s: the error has no path: %v", what, err)
	}
	r.isNot(err, workspace.ErrWorkspace, what)
}

func (r *R) oddNames(names []string) {
	dir := r.dir()
	for _, name := range names {
		p := path.Join(dir, name)
		if path.Base(p) != name {
			r.Fatalf("%q is no name", name)
		}
		r.write(p, []byte(name))
		r.same(fmt.Sprintf("content of %q", name), r.read(p), []byte(name))
		e, err := r.ws.Stat(r.ctx, p)
		r.ok(err, fmt.Sprintf("Stat %q", name))
		r.equal("name", e.Name, name)
		r.write(path.Join(p+".d", name), nil) // also as a directory
		r.equal("entries of the directory", strings.Join(r.names(p+".d"), "/"), name)
		real, err := r.ws.Realpath(r.ctx, p)
		r.ok(err, fmt.Sprintf("Realpath %q", name))
		if r.ws.Supports(workspace.Realpaths) {
			wantDir, err := r.ws.Realpath(r.ctx, dir)
			r.ok(err, "Realpath")
			r.equal("real path", real, path.Join(wantDir, name))
		}
	}
	var want []string
	for _, name := range names {
		want = append(want, name, name+".d")
	}
	slices.Sort(want)
	if got := r.names(dir); !slices.Equal(got, want) {
		r.Errorf("entries are %q, want %q", got, want)
	}
	for _, name := range want {
		r.ok(r.ws.Remove(r.ctx, path.Join(dir, name)), fmt.Sprintf("Remove %q", name))
	}
	r.equal("entries", len(r.names(dir)), 0)
}

type failReader struct{ err error }

func (f failReader) Read([]byte) (int, error) { return 0, f.err }

// cancelReader ends a context in the middle of a read, and reads nothing.
type cancelReader func()

func (c cancelReader) Read([]byte) (int, error) {
	c()
	return 0, io.EOF
}
