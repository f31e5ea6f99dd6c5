package limits

import (
	"context"
	"crypto/sha256"
	_ "embed" // the tool's description
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

// Limits of Outputs.
const (
	DefaultMaxChars = 10_000   // characters of a result, where Options do not say
	MaxKept         = 32 << 20 // bytes of results that a run without a workspace keeps
)

// resultDir is where long results are kept, below the working directory.
const resultDir = ".hutch/results"

// OutputOptions are for Outputs.
type OutputOptions struct {
	// MaxChars bounds each result, its note included, in characters; 0 means
	// DefaultMaxChars. It is at least 1000.
	MaxChars int
	// Truncate only cuts, and keeps nothing.
	Truncate bool
	// Skip are tools whose results are left as they are.
	Skip []string
}

// Outputs returns a capability that bounds the results of tools. The beginning
// of a long one is shown, and the whole is kept: in a file in the workspace
// where there is one that can be written, else in memory until the run ends.
// The tool read_result pages through it.
func Outputs(opt OutputOptions) agent.PerRun {
	if opt.MaxChars <= 0 {
		opt.MaxChars = DefaultMaxChars
	}
	opt.MaxChars = max(opt.MaxChars, 1000)
	return outputs{opt}
}

type outputs struct{ opt OutputOptions }

// ForRun returns the capability for one run.
func (o outputs) ForRun(_ context.Context, run *agent.Run) (agent.Capability, error) {
	if o.opt.Truncate {
		return &truncate{o.opt}, nil
	}
	ws := run.Workspace()
	return &results{
		opt: o.opt, run: run, kept: map[string]string{},
		files: ws.Attached() && !ws.ReadOnly() && ws.Supports(workspace.FileOps),
	}, nil
}

// truncate is Outputs that keeps nothing.
type truncate struct{ opt OutputOptions }

func (t *truncate) AfterTool(_ context.Context, call *agent.Call, out *agent.ToolOutput) error {
	if slices.Contains(t.opt.Skip, call.Tool) || utf8.RuneCountInString(out.Text) <= t.opt.MaxChars {
		return nil
	}
	whole := len(out.Text)
	shown := clip(out.Text, t.opt.MaxChars-200)
	out.Text = fmt.Sprintf("%s\n[this result is cut: %d of %d bytes are shown]", shown, len(shown), whole)
	return nil
}

// results is Outputs in one run.
type results struct {
	opt   OutputOptions
	run   *agent.Run
	files bool

	mu    sync.Mutex
	kept  map[string]string // by id, without a workspace
	order []string          // ids in kept, oldest first
	size  int
}

//go:embed read_result.md
var readResultDoc string

// Tools returns read_result.
func (r *results) Tools(context.Context, *agent.Run) ([]agent.Tool, error) {
	return []agent.Tool{agent.NewTool("read_result", readResultDoc, r.read)}, nil
}

var idForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// AfterTool bounds a result.
func (r *results) AfterTool(ctx context.Context, call *agent.Call, out *agent.ToolOutput) error {
	if call.Tool == "read_result" || slices.Contains(r.opt.Skip, call.Tool) || utf8.RuneCountInString(out.Text) <= r.opt.MaxChars {
		return nil
	}
	sum := sha256.Sum256([]byte(r.run.ID() + "\x00" + call.CallID))
	id := hex.EncodeToString(sum[:16])
	whole := out.Text
	shown := clip(whole, r.opt.MaxChars-300)
	note := fmt.Sprintf("[this result is cut: %d of %d bytes are shown; go on with read_result, id=%s, offset=%d]", len(shown), len(whole), id, len(shown))
	if err := r.keep(ctx, id, whole); err != nil {
		if !agent.Correctable(err) {
			return err
		}
		note = fmt.Sprintf("[this result is cut: %d of %d bytes are shown; the rest could not be kept: %v]", len(shown), len(whole), err)
	}
	out.Text = shown + "\n" + note
	return nil
}

func (r *results) keep(ctx context.Context, id, text string) error {
	if r.files {
		ws := r.run.Workspace()
		const ignore = ".hutch/.gitignore"
		ok, err := ws.Exists(ctx, ignore)
		if err == nil && !ok {
			err = ws.WriteText(ctx, ignore, "*\n")
		}
		if err != nil {
			return err
		}
		return ws.WriteFrom(ctx, resultDir+"/"+id+".txt", strings.NewReader(text))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept[id] = text
	r.order = append(r.order, id)
	r.size += len(text)
	for r.size > MaxKept && len(r.order) > 1 {
		r.size -= len(r.kept[r.order[0]])
		delete(r.kept, r.order[0])
		r.order = r.order[1:]
	}
	return nil
}

type readArgs struct {
	ID     string `json:"id" jsonschema:"from the note at the end of the cut result"`
	Offset int64  `json:"offset,omitempty" jsonschema:"bytes from the beginning"`
}

func (r *results) read(ctx context.Context, call *agent.Call, a readArgs) (string, error) {
	if a.Offset < 0 {
		return "", agent.Retryf("offset is negative")
	}
	unknown := agent.Retryf("there is no result with the id %.64q", a.ID)
	if !idForm.MatchString(a.ID) {
		return "", unknown
	}
	page := int64(r.opt.MaxChars - 300)
	data, total, err := r.part(ctx, a.ID, a.Offset, page)
	if errors.Is(err, fs.ErrNotExist) {
		return "", unknown
	}
	if err != nil {
		return "", err
	}
	if a.Offset > 0 && a.Offset >= total {
		return "", agent.Retryf("offset %d is past the end of the result, which has %d bytes", a.Offset, total)
	}
	// End with a whole character, unless there is none.
	for n := len(data); n > len(data)-utf8.UTFMax && n > 0; n-- {
		if r, size := utf8.DecodeLastRune(data[:n]); r != utf8.RuneError || size != 1 {
			if a.Offset+int64(len(data)) < total {
				data = data[:n]
			}
			break
		}
	}
	next := a.Offset + int64(len(data))
	text := workspace.Text(data)
	if next >= total {
		return text + "\n[end of the result]", nil
	}
	return fmt.Sprintf("%s\n[%d more bytes; go on with offset=%d]", text, total-next, next), nil
}

// part returns a piece of a kept result, and how long the whole is.
func (r *results) part(ctx context.Context, id string, offset, length int64) ([]byte, int64, error) {
	r.mu.Lock()
	text, ok := r.kept[id]
	r.mu.Unlock()
	if ok {
		total := int64(len(text))
		from := min(offset, total)
		return []byte(text[from:min(from+length, total)]), total, nil
	}
	if !r.files {
		return nil, 0, fs.ErrNotExist
	}
	ws, file := r.run.Workspace(), resultDir+"/"+id+".txt"
	info, err := ws.Stat(ctx, file)
	if err != nil {
		return nil, 0, err
	}
	f, err := ws.Open(ctx, file, offset)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, length))
	return data, max(info.Size, offset+int64(len(data))), err
}
