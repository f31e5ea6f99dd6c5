package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/cli/hosttar"
)

func (e *env) cpCommand() *cobra.Command {
	var follow, owners bool
	cmd := &cobra.Command{
		Use:   "cp [flags] BOX:PATH PATH|-  or  cp [flags] PATH|- BOX:PATH",
		Short: "Copy files between a box and this machine",
		Long: `A PATH that is a folder goes into a destination folder that exists, and becomes one
that does not; PATH/. is its content. - is a tar on standard input or output. A local
path with a colon is written ./a:b. Files get the owner of the destination, see -a.
A box that does not run is started.`,
		Example: `  hutch cp ./src dev:/work
  hutch cp dev:/work/out.txt .
  tar c src | hutch cp - dev:/work`,
		DisableFlagsInUseLine: true,
		Args:                  need(2, 2, "source and destination"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c := copyJob{env: e, follow: follow, owners: owners}
			srcBox, src := splitBoxPath(args[0])
			dstBox, dst := splitBoxPath(args[1])
			switch {
			case src == "" || dst == "":
				return usagef("PATH: must not be empty; write BOX:PATH or a local path")
			case srcBox != "" && dstBox != "":
				return usagef("copying from one box to another is not possible at once; copy to this machine first, or use: hutch cp %s - | hutch cp - BOX:FOLDER", clip(args[0]))
			case srcBox == "" && dstBox == "":
				return usagef("neither %q nor %q names a box; write BOX:PATH for one of them", clip(args[0]), clip(args[1]))
			case dstBox != "" && src == "-":
				return c.tarIn(ctx, dstBox, dst)
			case dstBox != "":
				return c.in(ctx, src, dstBox, dst)
			case dst == "-":
				return c.tarOut(ctx, srcBox, src)
			}
			return c.out(ctx, srcBox, src, dst)
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&follow, "follow-link", "L", false, "follow a symbolic link at the source itself")
	fs.BoolVarP(&owners, "archive", "a", false, "keep the numeric owners")
	return cmd
}

// splitBoxPath splits BOX:PATH. A path that starts with / or . is local even
// if it has a colon, as in docker.
func splitBoxPath(arg string) (name, p string) {
	if filepath.IsAbs(arg) || strings.HasPrefix(arg, ".") {
		return "", arg
	}
	name, p, ok := strings.Cut(arg, ":")
	if !ok || name == "" || strings.Contains(name, "/") {
		return "", arg
	}
	return name, p
}

// place is one end of a copy.
type place struct {
	path   string // absolute, clean
	name   string // its last element
	folder bool   // it was written as a folder: with / or /. at its end
	within bool   // it was written with /. at its end: what is in it
	exists bool
	isDir  bool
}

// newPlace reads a path that is absolute.
func newPlace(p string) place {
	base := path.Base(p)
	if strings.HasSuffix(p, "/") {
		base = ""
	}
	clean := path.Clean(p)
	return place{
		path: clean, name: path.Base(clean),
		folder: base == "" || base == "." || base == "..",
		within: strings.HasSuffix(p, "/.") || clean == "/",
	}
}

var (
	errNotDir    = errors.New("it is no directory")
	errNoParent  = errors.New("no such directory")
	errDirOnFile = errors.New("a directory cannot replace a file")
)

// destination says what a copy makes: an entry called name in the directory
// dir, which must exist; "." as a name is the content of src in dir. These are
// docker's rules.
func destination(src, dst place) (dir, name string, err error) {
	switch {
	case src.folder && !src.isDir:
		return "", "", fmt.Errorf("%s: %w; leave out the / at its end", src.path, errNotDir)
	case dst.exists && dst.isDir && src.within:
		return dst.path, ".", nil
	case dst.exists && dst.isDir:
		return dst.path, src.name, nil
	case dst.exists && dst.folder:
		return "", "", fmt.Errorf("%s: %w; leave out the / at its end", dst.path, errNotDir)
	case dst.exists && src.isDir:
		return "", "", fmt.Errorf("%s: %w; name a folder as the destination", dst.path, errDirOnFile)
	case !dst.exists && dst.folder && !src.isDir:
		return "", "", fmt.Errorf("%s: %w; create it first, or leave out the / at its end", dst.path, errNoParent)
	}
	return path.Dir(dst.path), dst.name, nil
}

// copyJob is one cp.
type copyJob struct {
	env            *env
	follow, owners bool
}

func (c copyJob) unpackOptions() box.UnpackOptions {
	return box.UnpackOptions{KeepOwner: c.owners, NoOverwriteDir: true}
}

// maxLinks is how many symbolic links one place may lead through.
const maxLinks = 40

// boxPlace looks at a path in a box. Relative paths start at the box's root.
// A link at a destination that leads nowhere yet is followed to there.
func boxPlace(ctx context.Context, b *box.Box, p string, follow bool) (place, error) {
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	at := newPlace(p)
	stat := b.Lstat
	if follow || at.folder {
		stat = b.Stat
	}
	fi, err := stat(ctx, at.path)
	if err == nil {
		at.exists, at.isDir = true, fi.FileMode.IsDir()
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return at, err
}

// boxDestination is boxPlace for a destination.
func boxDestination(ctx context.Context, b *box.Box, p string) (place, error) {
	at, err := boxPlace(ctx, b, p, true)
	for range maxLinks {
		if err != nil || at.exists {
			return at, err
		}
		fi, lerr := b.Lstat(ctx, at.path)
		if lerr != nil || fi.FileMode&fs.ModeSymlink == 0 {
			return at, nil
		}
		target, rerr := b.Readlink(ctx, at.path)
		if rerr != nil {
			return at, rerr
		}
		folder := at.folder
		at, err = boxPlace(ctx, b, joinLink(at.path, target), true)
		at.folder = at.folder || folder
	}
	return at, fmt.Errorf("%s: too many symbolic links; name the place itself", p)
}

func joinLink(link, target string) string {
	if path.IsAbs(target) {
		return target
	}
	return path.Join(path.Dir(link), target)
}

// hostPlace looks at a path on this machine.
func (e *env) hostPlace(p string, follow bool) (place, error) {
	at := newPlace(e.hostPath(p))
	if p == "." {
		at.within = true
	}
	stat := os.Lstat
	if follow || at.folder {
		stat = os.Stat
	}
	fi, err := stat(at.path)
	if err == nil {
		at.exists, at.isDir = true, fi.IsDir()
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return at, err
}

// hostDestination is hostPlace for a destination.
func (e *env) hostDestination(p string) (place, error) {
	at, err := e.hostPlace(p, true)
	for range maxLinks {
		if err != nil || at.exists {
			return at, err
		}
		target, rerr := os.Readlink(at.path)
		if rerr != nil {
			return at, nil
		}
		folder := at.folder
		at, err = e.hostPlace(joinLink(at.path, target), true)
		at.folder = at.folder || folder
	}
	return at, fmt.Errorf("%s: too many symbolic links; name the place itself", p)
}

// in copies a path of this machine into a box.
func (c copyJob) in(ctx context.Context, src, ref, dst string) error {
	from, err := c.env.hostPlace(src, c.follow)
	if err == nil && !from.exists {
		err = fmt.Errorf("cp %s: no such file or directory; check the path", src)
	}
	if err != nil {
		return err
	}
	b, _, err := c.env.find(ctx, ref)
	if err != nil {
		return err
	}
	to, err := boxDestination(ctx, b, dst)
	if err != nil {
		return err
	}
	dir, name, err := destination(from, to)
	if err != nil {
		return fmt.Errorf("cp: %w", err)
	}
	if err := needBoxDir(ctx, b, ref, dir); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		defer c.env.guard()
		err := hosttar.Pack(ctx, pw, from.path, name, c.follow || from.folder)
		pw.CloseWithError(err)
		packed <- err
	}()
	err = b.CopyIn(ctx, dir, pr, c.unpackOptions())
	_ = pr.Close() // a CopyIn that stopped early must not leave the packer waiting
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return fmt.Errorf("cp %s: %w", src, perr)
	}
	return err
}

// needBoxDir checks that a directory is there before anything is sent to it.
func needBoxDir(ctx context.Context, b *box.Box, ref, dir string) error {
	fi, err := b.Stat(ctx, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cp %s:%s: %w; create it with 'hutch exec %s mkdir -p %s'", ref, dir, errNoParent, ref, dir)
	case err != nil:
		return err
	case !fi.FileMode.IsDir():
		return fmt.Errorf("cp %s:%s: %w; name a folder", ref, dir, errNotDir)
	}
	return nil
}

// out copies a path of a box to this machine.
func (c copyJob) out(ctx context.Context, ref, src, dst string) error {
	b, _, err := c.env.find(ctx, ref)
	if err != nil {
		return err
	}
	from, err := c.source(ctx, b, ref, src)
	if err != nil {
		return err
	}
	to, err := c.env.hostDestination(dst)
	if err != nil {
		return err
	}
	dir, name, err := destination(from, to)
	if err != nil {
		return fmt.Errorf("cp: %w", err)
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return fmt.Errorf("cp %s: %w; create it with 'mkdir -p'", dir, errNoParent)
	}
	r, err := b.CopyOut(ctx, from.path, box.PackOptions{Name: name, Follow: c.follow || from.folder})
	if err != nil {
		return err
	}
	defer r.Close()
	if err := hosttar.Unpack(ctx, dir, r, name, c.owners); err != nil {
		return fmt.Errorf("cp %s:%s: %w", ref, src, err)
	}
	return nil
}

// source looks at a path in a box that must be there.
func (c copyJob) source(ctx context.Context, b *box.Box, ref, src string) (place, error) {
	from, err := boxPlace(ctx, b, src, c.follow)
	if err == nil && !from.exists {
		err = fmt.Errorf("cp %s:%s: no such file or directory; see 'hutch exec %s ls -a %s'", ref, src, ref, path.Dir(from.path))
	}
	return from, err
}

// tarIn unpacks standard input into a directory of a box.
func (c copyJob) tarIn(ctx context.Context, ref, dst string) error {
	if c.env.term.in != nil {
		return usagef("-: standard input is a terminal; redirect a tar to it")
	}
	b, _, err := c.env.find(ctx, ref)
	if err != nil {
		return err
	}
	to, err := boxDestination(ctx, b, dst)
	if err != nil {
		return err
	}
	if err := needBoxDir(ctx, b, ref, to.path); err != nil {
		return err
	}
	in, release, err := readerWithContext(ctx, c.env.Stdin)
	if err != nil {
		return err
	}
	defer release()
	return b.CopyIn(ctx, to.path, in, c.unpackOptions())
}

// tarOut writes a tar of a path in a box to standard output.
func (c copyJob) tarOut(ctx context.Context, ref, src string) error {
	if c.env.term.out != nil {
		return usagef("-: standard output is a terminal; redirect the tar to a file or a command")
	}
	b, _, err := c.env.find(ctx, ref)
	if err != nil {
		return err
	}
	from, err := c.source(ctx, b, ref, src)
	if err != nil {
		return err
	}
	opts := box.PackOptions{Follow: c.follow || from.folder}
	if from.within {
		opts.Name = "."
	}
	r, err := b.CopyOut(ctx, from.path, opts)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(c.env.stdout, r)
	return err
}
