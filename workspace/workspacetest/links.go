package workspacetest

import (
	"io"
	"path"
	"strings"
	"syscall"

	"github.com/hutch-sandbox/hutch/workspace"
)

// linkRules are about symbolic links. The links are made by commands.
var linkRules = []rule{
	{name: "F09", needs: both, limits: []Limit{NoTraversal}, sentence: "a link to itself, or to nothing, is listed as no directory and spoils nothing",
		run: func(r *R) {
			dir := r.dir()
			r.sh(dir, "ln -s self self; ln -s nowhere broken; mkdir d; ln -s d todir; : > f")
			entries, err := r.ws.ReadDir(r.ctx, dir)
			r.ok(err, "ReadDir")
			got := ""
			for _, e := range entries {
				got += e.Name
				if e.Dir {
					got += "/"
				}
				got += " "
			}
			r.equal("entries", got, "broken d/ f self todir/ ")
			for _, name := range []string{"self", "broken"} {
				there, err := r.ws.Exists(r.ctx, path.Join(dir, name))
				r.ok(err, "Exists "+name)
				r.equal("existence of "+name, there, false)
			}
		}},
	{name: "F16", needs: both, limits: []Limit{NoTraversal}, sentence: "Realpath follows every link, keeps what is missing, and ends at a loop",
		run: func(r *R) {
			dir, err := r.ws.Realpath(r.ctx, r.dir())
			r.ok(err, "Realpath")
			r.sh(dir, "mkdir -p sub/inner b; : > sub/file; ln -s sub/inner link; ln -s "+workspace.Quote(path.Join(dir, "b"))+" abs; ln -s ../b sub/up; ln -s loop2 loop1; ln -s loop1 loop2; ln -s nowhere/x dangling; ln -s link chain")
			for name, want := range map[string]string{
				".": "", "sub": "sub", "link": "sub/inner", "link/missing": "sub/inner/missing", "abs/missing/too": "b/missing/too",
				"sub/up": "b", "sub/up/../x": "x", "link/..": "sub", "link/../file": "sub/file", "dangling": "nowhere/x", "dangling/y": "nowhere/x/y",
				"missing": "missing", "chain/../..": "", "sub//./inner/": "sub/inner",
			} {
				got, err := r.ws.Realpath(r.ctx, dir+"/"+name)
				r.ok(err, "Realpath "+name)
				r.equal("real path of "+name, got, path.Join(dir, want))
			}
			rel, err := r.ws.Realpath(r.ctx, r.name+"/link/..")
			r.ok(err, "Realpath of a relative path")
			r.equal("real path of a relative path", rel, path.Join(dir, "sub"))
			for _, name := range []string{"loop1", "loop1/x"} {
				if got, err := r.ws.Realpath(r.ctx, path.Join(dir, name)); err == nil && !strings.HasPrefix(got, dir+"/") {
					r.Errorf("the loop leads to %q", got)
				} else if err != nil {
					r.fault(err, syscall.ELOOP, "Realpath of a loop")
				}
			}
			e, err := r.ws.Stat(r.ctx, path.Join(dir, "link"))
			r.ok(err, "Stat through a link")
			r.equal("Stat through a link: directory", e.Dir, true)
			r.equal("Stat through a link: name", e.Name, "link")
			r.write(path.Join(dir, "sub/inner/x"), []byte("x"))
			r.equal("entries through a link", strings.Join(r.names(path.Join(dir, "link")), " "), "x")
		}},
	{name: "F30", needs: both, limits: []Limit{NoTraversal}, sentence: "OpenFile tells the size and the real path of the file that it opened",
		run: func(r *R) {
			dir, err := r.ws.Realpath(r.ctx, r.dir())
			r.ok(err, "Realpath")
			r.write(path.Join(dir, "sub/file"), []byte("content"))
			r.sh(dir, "ln -s sub up; ln -s up/file link; ln -s nowhere dangling")
			for _, name := range []string{"sub/file", "up/file", "link", "sub/../link"} {
				e, f, err := r.ws.OpenFile(r.ctx, dir+"/"+name, 3)
				r.ok(err, "OpenFile "+name)
				r.equal("entry of "+name, e, workspace.Entry{Name: "file", Path: path.Join(dir, "sub/file"), Size: int64(len("content"))})
				got, err := io.ReadAll(f)
				r.ok(err, "Read "+name)
				r.equal("content of "+name, string(got), "tent")
				r.ok(f.Close(), "Close "+name)
			}
			for name, want := range map[string]syscall.Errno{"dangling": syscall.ENOENT, "sub": syscall.EISDIR, "up": syscall.EISDIR} {
				_, _, err := r.ws.OpenFile(r.ctx, path.Join(dir, name), 0)
				r.fault(err, want, "OpenFile "+name)
			}
		}},
	{name: "F17", needs: both, limits: []Limit{NoTraversal}, sentence: "a write through a link changes its target, and the link stays",
		run: func(r *R) {
			dir := r.dir()
			r.write(path.Join(dir, "sub/target"), []byte("old"))
			r.sh(dir, "ln -s sub/target link; ln -s sub/new dangling; ln -s link chain")
			r.write(path.Join(dir, "link"), []byte("new"))
			r.write(path.Join(dir, "dangling"), []byte("made"))
			r.equal("targets", r.sh(dir, "cat sub/target sub/new"), "newmade")
			r.write(path.Join(dir, "chain"), []byte("chained"))
			r.equal("target", r.sh(dir, "[ -h link ] && [ -h dangling ] && [ -h chain ] && cat sub/target"), "chained")
		}},
	{name: "F18", needs: files, limits: []Limit{NoTraversal}, sentence: "Realpath leaves alone what has no links",
		run: func(r *R) {
			wd, err := r.ws.WorkingDir(r.ctx)
			r.ok(err, "WorkingDir")
			for _, name := range []string{wd, path.Join(wd, "missing-name"), "/"} {
				got, err := r.ws.Realpath(r.ctx, name)
				r.ok(err, "Realpath")
				r.equal("real path", got, name)
			}
		}},
	{name: "F19", needs: both, limits: []Limit{NoTraversal}, sentence: "Remove removes a link and not its target, and is not led to the working directory by one",
		run: func(r *R) {
			dir := r.dir()
			wd, err := r.ws.WorkingDir(r.ctx)
			r.ok(err, "WorkingDir")
			r.write(path.Join(dir, "d/kept"), nil)
			r.sh(dir, "ln -s d todir; ln -s d/kept tofile; ln -s self self; ln -s "+workspace.Quote(path.Dir(wd))+" above; ln -s "+workspace.Quote(wd)+" here")
			// Led by a parent that is a link, these are the working directory.
			for _, name := range []string{"above/" + path.Base(wd)} {
				r.is(r.ws.Remove(r.ctx, path.Join(dir, name)), workspace.ErrInvalid, "Remove "+name)
			}
			for _, name := range []string{"todir", "tofile", "self", "here", "above"} {
				r.ok(r.ws.Remove(r.ctx, path.Join(dir, name)), "Remove "+name)
			}
			r.equal("entries", strings.Join(r.names(dir), " "), "d")
			r.equal("entries of the target", strings.Join(r.names(path.Join(dir, "d")), " "), "kept")
		}},
}
