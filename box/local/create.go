package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/helper"
	"github.com/hutch-sandbox/hutch/internal/image"
	"github.com/hutch-sandbox/hutch/internal/image/layer"
)

// Create checks the spec against this machine, resolves the image and writes
// the box down, or makes one that was booted ahead the box.
func (d *driver) Create(ctx context.Context, spec box.Spec) (box.Info, error) {
	info, err := d.create(ctx, spec)
	if err != nil {
		d.failed.Add(1)
		return info, err
	}
	d.created.Add(1)
	return info, nil
}

func (d *driver) create(ctx context.Context, spec box.Spec) (box.Info, error) {
	if _, err := d.box("new"); err != nil {
		return box.Info{}, err
	}
	if err := spec.Validate(); err != nil {
		return box.Info{}, err
	}
	if spec.Name != "" {
		// Before a pull that may take minutes; claiming the name decides.
		if _, err := d.home.Find(spec.Name); err == nil {
			return box.Info{}, &box.Error{Kind: box.Exists, Op: "create box", Object: spec.Name, Err: errors.New("the name is taken"),
				Hint: fmt.Sprintf("choose another name or remove that box: hutch rm %s", spec.Name)}
		}
	}
	rec := boxdir.Record{Name: spec.Name, State: box.Created, CreatedAt: time.Now().Round(0)}
	eng, err := d.chooseEngine(ctx, spec)
	if err != nil {
		return box.Info{}, err
	}
	rec.Engine, rec.Isolation, rec.Accelerator = eng.Name, eng.Isolation, eng.Accelerator
	if rec.Limits, err = plannedLimits(spec, eng); err != nil {
		return box.Info{}, err
	}
	if err := d.checkVolumes(spec); err != nil {
		return box.Info{}, err
	}
	lease, err := d.resolveImage(ctx, spec, &rec)
	if err != nil {
		return box.Info{}, err
	}
	if lease != nil {
		defer func() { _ = lease.Close() }()
	}
	if err := d.checkUser(cmp.Or(spec.User, rec.Config.User)); err != nil {
		return box.Info{}, err
	}
	if err := knownUser(rec.Tree, cmp.Or(spec.User, rec.Config.User)); err != nil {
		return box.Info{}, err
	}
	if rec.Main, err = mainCommand(spec, rec.Config); err != nil {
		return box.Info{}, err
	}
	values := takeValues(&spec)
	rec.Spec = spec
	rec.Hostname = spec.Hostname
	if adopted, ok, err := d.adopt(ctx, rec); ok || err != nil {
		return adopted.Info(), err
	}
	_, rec, err = d.home.Create(rec)
	if err != nil {
		return box.Info{}, err
	}
	d.remember(rec.ID, values)
	d.home.Emit(box.Event{Action: "create", ID: rec.ID, Name: rec.Name, Attrs: map[string]string{"image": rec.Image}})
	return rec.Info(), nil
}

// chooseEngine picks the engine that the spec asks for, or the best.
func (d *driver) chooseEngine(ctx context.Context, spec box.Spec) (box.EngineInfo, error) {
	probe, err := d.probe(ctx)
	if err != nil {
		return box.EngineInfo{}, err
	}
	want := cmp.Or(spec.Engine, d.cfg.Engine)
	if want == "auto" {
		want = ""
	}
	if want != "" && !usable(probe, want) {
		if probe, err = d.probeAgain(ctx); err != nil { // perhaps it has been mended
			return box.EngineInfo{}, err
		}
	}
	hint := "hutch doctor tells what is missing"
	var names, reasons []string
	for n, e := range probe.Engines {
		names = append(names, e.Name)
		if want != "" && e.Name != want {
			continue
		}
		if !e.Usable {
			reasons = append(reasons, e.Name+": "+e.Reason)
			if want != "" && probe.Fixes[n] != "" {
				hint = probe.Fixes[n]
			}
			continue
		}
		if want == "" && e.Explicit {
			reasons = append(reasons, e.Name+": only when it is asked for by name: "+e.Note)
			continue
		}
		if spec.Isolation == box.IsolationHardware && e.Isolation != box.IsolationHardware {
			reasons = append(reasons, fmt.Sprintf("%s: gives %q, not %q", e.Name, e.Isolation, spec.Isolation))
			continue
		}
		return e, nil
	}
	if len(reasons) == 0 {
		return box.EngineInfo{}, &box.Error{Kind: box.Unsupported, Op: "create box", Object: "engine " + want,
			Err: errors.New("this build has no such engine"), Hint: "it has: " + strings.Join(names, ", ")}
	}
	return box.EngineInfo{}, &box.Error{Kind: box.Unsupported, Op: "create box", Object: "engine",
		Err: errors.New("none fits: " + strings.Join(reasons, "; ")), Hint: hint}
}

func usable(a *helper.ProbeAnswer, name string) bool {
	return slices.ContainsFunc(a.Engines, func(e box.EngineInfo) bool { return e.Name == name && e.Usable })
}

// plannedLimits refuses a limit that was asked for and that nothing here
// would enforce; the defaults are left out instead, and Info says so.
func plannedLimits(spec box.Spec, eng box.EngineInfo) (box.Limits, error) {
	l := eng.Limits
	l.CPUs.Value = spec.CPUs
	l.Memory.Value = float64(orDefault(spec.Memory, box.DefaultMemory))
	l.Pids.Value = float64(orDefault(int64(spec.Pids), box.DefaultPids))
	l.Disk.Value = float64(orDefault(spec.Disk, box.DefaultDisk))
	if spec.CPUs == 0 {
		l.CPUs = box.Limit{}
	}
	if spec.CPUs > float64(runtime.NumCPU()) {
		return l, &box.Error{Kind: box.Invalid, Op: "create box", Object: "CPUs",
			Err: fmt.Errorf("%g is more than the %d of this machine", spec.CPUs, runtime.NumCPU()), Hint: "ask for less"}
	}
	for _, f := range []struct {
		name  string
		asked bool
		limit *box.Limit
	}{
		{"CPUs", spec.CPUs > 0, &l.CPUs},
		{"Memory", spec.Memory > 0, &l.Memory},
		{"Disk", spec.Disk > 0, &l.Disk},
		{"Pids", spec.Pids > 0, &l.Pids},
	} {
		if f.limit.By != "" || f.limit.Value == 0 {
			continue
		}
		if f.asked {
			return l, &box.Error{Kind: box.Unsupported, Op: "create box", Object: f.name,
				Err: fmt.Errorf("nothing on this machine can hold that limit: %s", f.limit.Note), Hint: "leave it out, or run as root"}
		}
		f.limit.Value = 0
	}
	return l, nil
}

func orDefault(v, def int64) int64 {
	if v == 0 {
		return def
	}
	return v
}

// checkVolumes looks at host paths now, where the user still reads the answer.
func (d *driver) checkVolumes(spec box.Spec) error {
	for n, v := range spec.Volumes {
		if v.Host == "" {
			continue
		}
		fi, err := os.Stat(v.Host)
		field := fmt.Sprintf("Volumes[%d].Host", n)
		if err != nil {
			return &box.Error{Kind: box.Invalid, Op: "create box", Object: field, Err: err, Hint: "make it first; Hutch does not make host folders"}
		}
		if !fi.IsDir() && !fi.Mode().IsRegular() {
			return &box.Error{Kind: box.Invalid, Op: "create box", Object: field, Err: fmt.Errorf("%s is neither a folder nor a file", v.Host), Hint: "name a folder or a file"}
		}
	}
	for n, v := range spec.Volumes {
		if err := d.checkMountPoint(spec.Volumes, v); err != nil {
			return &box.Error{Kind: box.Invalid, Op: "create box", Object: fmt.Sprintf("Volumes[%d].Target", n), Err: err,
				Hint: "make the folder in the outer volume first, or mount somewhere else"}
		}
	}
	return nil
}

// checkMountPoint refuses a volume inside of another one in which its mount
// point is missing and cannot be made.
func (d *driver) checkMountPoint(volumes []box.Volume, v box.Volume) error {
	var outer box.Volume
	at := path.Clean(v.Target)
	for _, o := range volumes {
		if strings.HasPrefix(at, path.Clean(o.Target)+"/") && len(path.Clean(o.Target)) > len(path.Clean(outer.Target)) {
			outer = o
		}
	}
	if outer.Target == "" {
		return nil
	}
	source := outer.Host
	if outer.Name != "" {
		source = d.home.Path("volumes", outer.Name)
	}
	fi, err := os.Stat(source)
	if err == nil && !fi.IsDir() {
		return fmt.Errorf("%s lies below %s, which is a file", v.Target, outer.Target)
	}
	if !outer.ReadOnly {
		return nil
	}
	point := filepath.Join(source, strings.TrimPrefix(at, path.Clean(outer.Target)))
	if _, err := os.Stat(point); err != nil {
		return fmt.Errorf("%s lies in the read-only volume %s, which has no such folder", v.Target, outer.Target)
	}
	return nil
}

// resolveImage fills in what the box boots from. The lease keeps the image
// until the box is written down.
func (d *driver) resolveImage(ctx context.Context, spec box.Spec, rec *boxdir.Record) (*image.Lease, error) {
	here := "linux/" + runtime.GOARCH
	if ofHost := spec.RootFS != "" || spec.Image == "" || spec.Image == box.BuiltinImage; ofHost && spec.Platform != "" && spec.Platform != here {
		return nil, &box.Error{Kind: box.Unsupported, Op: "create box", Object: "Platform " + spec.Platform,
			Err: errors.New("neither the builtin image nor a folder comes for another platform than " + here), Hint: "leave it out, or name an image"}
	}
	if spec.RootFS != "" {
		fi, err := os.Stat(spec.RootFS)
		if err == nil && !fi.IsDir() {
			err = errors.New("not a folder")
		}
		if err != nil {
			return nil, &box.Error{Kind: box.Invalid, Op: "create box", Object: "RootFS", Err: err, Hint: "name an existing folder"}
		}
		dir, err := filepath.EvalSymlinks(spec.RootFS)
		if err != nil {
			return nil, err
		}
		rec.Tree, rec.Image = dir, dir
		return nil, nil
	}
	var img image.Image
	var lease *image.Lease
	var err error
	if spec.Image == "" || spec.Image == box.BuiltinImage {
		img, lease, err = d.builtinImage(ctx)
	} else {
		img, lease, err = d.store.Use(ctx, spec.Image, image.PullOptions{
			Platform: spec.Platform, Policy: pullPolicy(spec.Pull), Progress: pullProgress(d.cfg.Progress),
		})
	}
	if err != nil {
		return nil, err
	}
	tree, err := d.store.Tree(ctx, img, d.owners())
	if err != nil {
		_ = lease.Close()
		return nil, err
	}
	rec.Tree, rec.Digest, rec.Config = tree.Dir, img.Digest, imageConfig(img.Config)
	if rec.Image = img.Name; rec.Image == "" {
		rec.Image = img.Digest
	}
	return lease, nil
}

// builtinImage makes the builtin image the first time, and again when the
// helper carries another one.
func (d *driver) builtinImage(ctx context.Context) (image.Image, *image.Lease, error) {
	probe, err := d.probe(ctx)
	if err != nil {
		return image.Image{}, nil, err
	}
	img, err := d.store.AddTree(ctx, box.BuiltinImage, "builtin "+probe.Builtin, image.RunConfig{
		Cmd: []string{"sh"},
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}, unpacker{d.helper}.builtin)
	if err != nil {
		return image.Image{}, nil, err
	}
	img.Name = box.BuiltinImage
	lease, err := d.store.Lease(ctx, img.Digest)
	return img, lease, err
}

// owners says how files of images are owned here.
func (d *driver) owners() layer.Owners {
	if d.ids.All() {
		return layer.KeepOwners
	}
	return layer.OneOwner
}

// checkUser refuses a user that one single id cannot stand for.
func (d *driver) checkUser(user string) error {
	if d.ids.All() {
		return nil
	}
	name, _, _ := strings.Cut(user, ":")
	if name == "" || name == "root" || name == "0" {
		return nil
	}
	return &box.Error{Kind: box.Unsupported, Op: "choose user", Object: user,
		Err:  fmt.Errorf("a box of yours has only one user, root: %s", d.ids.WhyNot()),
		Hint: d.ids.Fix() + "; or run as root in the box (--user root)"}
}

// knownUser refuses a user or group that the image's own files do not name.
// Numbers need no entry.
func knownUser(tree, user string) error {
	name, group, _ := strings.Cut(user, ":")
	for _, c := range []struct{ file, what, name string }{{"etc/passwd", "user", name}, {"etc/group", "group", group}} {
		if c.name == "" || c.name == "root" && c.what == "user" {
			continue
		}
		if _, err := strconv.ParseUint(c.name, 10, 32); err == nil {
			continue
		}
		ok, err := listed(tree, c.file, c.name)
		if err != nil {
			return fmt.Errorf("create box: %w", err)
		}
		if !ok {
			return &box.Error{Kind: box.Invalid, Op: "create box", Object: "User", Err: fmt.Errorf("the image has no %s %q", c.what, c.name),
				Hint: "use one of its /" + c.file + ", or a number"}
		}
	}
	return nil
}

// listed looks for an entry in a passwd or group file of an image, which
// strangers made: links in it lead nowhere outside of the tree.
func listed(tree, file, name string) (bool, error) {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return false, err
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(file)
	if err != nil {
		return false, nil // no such file, or a link that leads out: nobody is listed
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return false, err
	}
	data, err := io.ReadAll(io.LimitReader(f, 4<<20))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(data)) {
		if entry, _, ok := strings.Cut(line, ":"); ok && entry == name {
			return true, nil
		}
	}
	return false, nil
}

// mainCommand joins entrypoint and command as docker does: an entrypoint of
// the spec drops the image's command.
func mainCommand(spec box.Spec, cfg box.ImageConfig) ([]string, error) {
	if !spec.HasMain() {
		return nil, nil
	}
	entrypoint, cmd := cfg.Entrypoint, cfg.Cmd
	if len(spec.Entrypoint) > 0 {
		entrypoint, cmd = spec.Entrypoint, nil
	}
	if len(spec.Cmd) > 0 {
		cmd = spec.Cmd
	}
	// An entrypoint of one empty string takes the image's away.
	if len(entrypoint) == 1 && entrypoint[0] == "" {
		entrypoint = nil
	}
	main := slices.Concat(entrypoint, cmd)
	if len(main) == 0 {
		return nil, &box.Error{Kind: box.Invalid, Op: "create box", Object: "Cmd", Err: errors.New("neither the image nor the spec has a command"), Hint: "name a command"}
	}
	return main, nil
}

// probe asks the helper what works here, once in this process. The answer
// costs one short process.
func (d *driver) probe(ctx context.Context) (*helper.ProbeAnswer, error) {
	d.probeMu.Lock()
	defer d.probeMu.Unlock()
	if d.probed != nil {
		return d.probed, nil
	}
	if a, ok := d.probeCache().load(); ok {
		d.probed = a
		return a, nil
	}
	return d.probeLocked(ctx)
}

// probeAgain asks the helper whatever is known already.
func (d *driver) probeAgain(ctx context.Context) (*helper.ProbeAnswer, error) {
	d.probeMu.Lock()
	defer d.probeMu.Unlock()
	return d.probeLocked(ctx)
}

func (d *driver) probeLocked(ctx context.Context) (*helper.ProbeAnswer, error) {
	cache := d.probeCache()
	var answer helper.ProbeAnswer
	req := helper.ProbeRequest{CacheDir: d.home.Path("cache")}
	p, err := helper.Start(ctx, helper.Probe, helper.Options{Path: d.helper, Request: req, Answer: &answer})
	if err != nil {
		return nil, err
	}
	if err := p.Wait(); err != nil {
		return nil, fmt.Errorf("helper: %w", err)
	}
	cache.store(&answer)
	d.probed = &answer
	return &answer, nil
}
