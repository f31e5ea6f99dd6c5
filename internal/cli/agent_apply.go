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
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/cli/changes"
)

func (e *env) agentApplyCommand() *cobra.Command {
	var dryRun, force bool
	cmd := &cobra.Command{
		Use:   "apply [flags] [BOX [PATH...]]",
		Short: "Take over what an agent changed in its copy of a folder",
		Long: `It prints the changes as a patch and makes them in the folder that 'hutch agent --dir'
copied; with PATHs only those. Without BOX it is the latest agent's that worked on a copy
of this folder. When a file has been changed here meanwhile, nothing is done, see --force.
What is in .git, links that lead out of the folder and devices are never taken over.`,
		Example: `  hutch agent apply --dry-run
  hutch agent apply hutch-0123456789abcdef0123456789abcdef src/main.go`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				var err error
				if name, err = parseBoxRef(args[0]); err != nil {
					return usagef("BOX: %v", err)
				}
				args = args[1:]
			}
			j := &applyJob{env: e, dryRun: dryRun, force: force}
			return j.run(cmd.Context(), name, args)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&dryRun, "dry-run", false, "only print the patch")
	fs.BoolVarP(&force, "force", "f", false, "overwrite files that were changed here meanwhile")
	return cmd
}

// applyJob is one "hutch agent apply".
type applyJob struct {
	env           *env
	dryRun, force bool

	box    *box.Box
	copy   *folderCopy
	folder *changes.Folder
	spool  string // a folder for new contents
	count  int    // of files in it
	files  map[string]string
}

// applyResult is it, for --json.
type applyResult struct {
	Box      string         `json:"box"`
	Dir      string         `json:"dir"`
	Applied  bool           `json:"applied"`
	Changes  []takenChange  `json:"changes"`
	Problems []takenProblem `json:"problems"`
}

type takenChange struct {
	Path string `json:"path"`
	What string `json:"what"`
}

type takenProblem struct {
	Path string `json:"path"`
	Why  string `json:"why"`
	Stay bool   `json:"stay"` // --force does not help
}

func (j *applyJob) run(ctx context.Context, name string, paths []string) (err error) {
	e := j.env
	rt, err := e.open(ctx)
	if err != nil {
		return err
	}
	host, err := rt.Host(ctx)
	if err != nil {
		return err
	}
	agents := filepath.Join(host.Home, "agents")
	if j.copy, err = e.findCopy(agents, name); err != nil {
		return err
	}
	within, err := j.within(paths)
	if err != nil {
		return err
	}
	if j.box, err = rt.Get(ctx, j.copy.Box); err != nil {
		return err
	}
	defer func() { _ = j.box.Close() }()
	now, err := j.list(ctx)
	if err != nil {
		return err
	}
	if j.folder, err = changes.Open(j.copy.Dir); err != nil {
		return fmt.Errorf("apply: %w; the folder that was copied has to be there", err)
	}
	defer func() { _ = j.folder.Close() }() // nothing was written through it
	if j.spool, err = os.MkdirTemp("", "hutch-apply-"); err != nil {
		return err
	}
	j.files = map[string]string{}
	defer func() {
		if rerr := os.RemoveAll(j.spool); err == nil {
			err = rerr
		}
	}()

	list := slices.DeleteFunc(changes.Compare(j.copy.Files, now), func(c changes.Change) bool { return !changes.Within(c.Path, within) })
	if n := changes.Guarded(j.copy.Files, now); n > 0 {
		e.note("apply: %s of git's own files (.git) left out", counted(n, "change"))
	}
	ready, problems, err := j.folder.Check(ctx, list)
	if err != nil {
		return err
	}
	todo, stuck := j.decide(list, ready, problems)
	if !e.json {
		if err := j.show(ctx, todo, now); err != nil {
			return err
		}
	}
	for _, p := range problems {
		e.note("apply: %s: %v", p.Path, p.Err)
	}
	applied := false
	if !j.dryRun && !stuck {
		if err := j.apply(ctx, agents, list, todo, problems, now); err != nil {
			return err
		}
		applied = true
	}
	if e.json {
		if err := e.document(j.result(todo, problems, applied)); err != nil {
			return err
		}
	}
	switch {
	case stuck:
		return fmt.Errorf("apply: nothing is changed in %s: %d of %d changes cannot be made; name the PATHs to take over, or add --force to overwrite", j.copy.Dir, len(problems), len(list))
	case len(todo) == 0:
		e.note("apply: there is nothing to do in %s", j.copy.Dir)
	case j.dryRun:
		e.note("apply: nothing is changed yet; make the changes with: hutch agent apply %s", j.copy.Box)
	default:
		e.note("apply: %s made in %s", counted(len(todo), "change"), j.copy.Dir)
	}
	return nil
}

// counted is "1 change" or "2 changes".
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// decide says which changes are to be made, and whether none may be.
func (j *applyJob) decide(list, ready []changes.Change, problems []changes.Problem) (todo []changes.Change, stuck bool) {
	if len(problems) == 0 {
		return ready, false
	}
	if !j.force {
		return ready, true
	}
	overcome := map[string]bool{}
	for _, c := range ready {
		overcome[c.Path] = true
	}
	for _, p := range problems {
		if !errors.Is(p.Err, changes.ErrNever) {
			overcome[p.Path] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(list), func(c changes.Change) bool { return !overcome[c.Path] }), false
}

// apply makes the changes and notes in the record what is the same now.
func (j *applyJob) apply(ctx context.Context, agents string, list, todo []changes.Change, problems []changes.Problem, now changes.Listing) error {
	source := j.source(ctx, now)
	// The box can fail, and this machine's disk: before anything is changed.
	for _, c := range todo {
		if c.After == nil || c.After.Kind != changes.File {
			continue
		}
		r, err := source(c.Path)
		if err != nil {
			return fmt.Errorf("apply: %s: %w; nothing is changed", c.Path, err)
		}
		_ = r.Close()
	}
	done, err := j.folder.Apply(ctx, todo, source, j.force)
	open := map[string]bool{}
	for _, c := range todo {
		open[c.Path] = true
	}
	for _, p := range problems {
		open[p.Path] = true
	}
	for _, c := range done {
		delete(open, c.Path)
	}
	for _, c := range list {
		switch {
		case open[c.Path]:
		case c.After == nil:
			delete(j.copy.Files, c.Path)
		default:
			j.copy.Files[c.Path] = *c.After
		}
	}
	if serr := j.copy.save(agents); err == nil {
		err = serr
	}
	if err != nil {
		return fmt.Errorf("apply: %w; %d of %d changes are made", err, len(done), len(todo))
	}
	return nil
}

// findCopy finds the record of a box, or the latest of the working directory.
func (e *env) findCopy(agents, name string) (*folderCopy, error) {
	if name != "" {
		c, err := readCopy(agents, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("apply: no folder was copied into box %q; name the box of a 'hutch agent --dir', or use 'hutch cp'", clip(name))
		}
		return c, err
	}
	here, err := filepath.EvalSymlinks(e.Dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(copiesDir(agents))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var latest *folderCopy
	for _, d := range entries {
		name, ok := strings.CutSuffix(d.Name(), ".json")
		if !ok {
			continue
		}
		c, err := readCopy(agents, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // forgotten meanwhile
		}
		if err != nil {
			return nil, err
		}
		if c.Dir == here && (latest == nil || c.Time.After(latest.Time)) {
			latest = c
		}
	}
	if latest == nil {
		return nil, usagef("BOX: no agent worked on a copy of %s; name the box of one, or change to its folder", here)
	}
	return latest, nil
}

// within makes the paths of the command line relative to the copied folder.
func (j *applyJob) within(paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		abs := filepath.Clean(j.env.hostPath(p))
		// The folder's own name has no links; what is below it may not exist yet.
		if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
			abs = filepath.Join(dir, filepath.Base(abs))
		}
		rel, err := filepath.Rel(j.copy.Dir, abs)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			return nil, usagef("PATH: %s is not in %s; name something in the folder that was copied", clip(p), j.copy.Dir)
		}
		out = append(out, filepath.ToSlash(rel))
	}
	return out, nil
}

// list lists the copy as it is now.
func (j *applyJob) list(ctx context.Context) (changes.Listing, error) {
	r, err := j.box.CopyOut(ctx, j.copy.Into, box.PackOptions{Name: "."})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	list, err := changes.Read(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("apply: %s:%s: %w; look at it with 'hutch exec'", j.copy.Box, j.copy.Into, err)
	}
	return list, nil
}

// source gives new contents, each fetched from the box once.
func (j *applyJob) source(ctx context.Context, now changes.Listing) changes.Source {
	return func(name string) (io.ReadCloser, error) {
		file, ok := j.files[name]
		if !ok {
			_, r, err := j.box.ReadStream(ctx, path.Join(j.copy.Into, name), 0, 0)
			if err != nil {
				return nil, err
			}
			defer r.Close()
			file = filepath.Join(j.spool, strconv.Itoa(j.count))
			j.count++
			// A file that grows meanwhile is not what was listed.
			if err := spoolTo(file, io.LimitReader(r, now[name].Size+1)); err != nil {
				return nil, err
			}
			j.files[name] = file
		}
		return os.Open(file)
	}
}

func spoolTo(file string, r io.Reader) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// show prints the patch. On a terminal nothing in it may steer that.
func (j *applyJob) show(ctx context.Context, todo []changes.Change, now changes.Listing) error {
	source := j.source(ctx, now)
	for _, c := range todo {
		var b strings.Builder
		if err := j.folder.Patch(&b, c, source); err != nil {
			return fmt.Errorf("apply: %s: %w", c.Path, err)
		}
		text := b.String()
		if j.env.term.out != nil {
			text = tame(text)
		}
		if _, err := io.WriteString(j.env.stdout, text); err != nil {
			return err
		}
	}
	return nil
}

func (j *applyJob) result(todo []changes.Change, problems []changes.Problem, applied bool) applyResult {
	r := applyResult{Box: j.copy.Box, Dir: j.copy.Dir, Applied: applied, Changes: []takenChange{}, Problems: []takenProblem{}}
	for _, c := range todo {
		r.Changes = append(r.Changes, takenChange{c.Path, c.Word()})
	}
	for _, p := range problems {
		r.Problems = append(r.Problems, takenProblem{p.Path, p.Err.Error(), errors.Is(p.Err, changes.ErrNever)})
	}
	return r
}
