package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/hutch-sandbox/hutch/box"
)

func (e *env) pullCommand() *cobra.Command {
	var (
		quiet    bool
		platform string
	)
	cmd := &cobra.Command{
		Use:     "pull [flags] IMAGE",
		Short:   "Fetch an image from its registry",
		Long:    `It prints the image's digest. Progress goes to standard error.`,
		Example: `  hutch pull python:3.12-slim`,
		Args:    need(1, 1, "IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return usagef("IMAGE: must not be empty; name one, for example python:3.12-slim")
			}
			img, err := e.pull(cmd.Context(), args[0], box.PullOptions{Platform: platform, Policy: box.PullAlways}, quiet)
			if err != nil {
				return err
			}
			if e.json {
				return e.document(img)
			}
			return e.println(img.Digest)
		},
		ValidArgsFunction: e.completeImages,
	}
	fs := cmd.Flags()
	fs.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	parsed(fs, &platform, "platform", "", "os/arch", "which platform of the image", someText)
	return cmd
}

// pull fetches an image, showing progress on standard error unless quiet.
func (e *env) pull(ctx context.Context, ref string, opts box.PullOptions, quiet bool) (box.Image, error) {
	rt, err := e.open(ctx)
	if err != nil {
		return box.Image{}, err
	}
	var p progress
	switch {
	case quiet || e.noProgress:
	case e.onTerminal(e.Stderr):
		p = newBars(e.Stderr)
	default:
		p = &lines{w: e.Stderr}
	}
	if p != nil {
		opts.Progress = p.update
		defer p.close()
	}
	return rt.Images().Pull(ctx, ref, opts)
}

func (e *env) onTerminal(w io.Writer) bool { return newTerminal(nil, w).out != nil }

// progress shows a pull.
type progress interface {
	update(box.PullProgress)
	close() // nothing is shown afterwards
}

// layerName is a layer as people see it: the beginning of its digest.
func layerName(digest string) string {
	_, hex, ok := strings.Cut(digest, ":")
	if !ok {
		hex = digest
	}
	return printable(hex[:min(len(hex), 12)])
}

// lines shows a line for every layer that changes its phase.
type lines struct {
	w     io.Writer
	phase map[string]string
}

func (l *lines) update(p box.PullProgress) {
	if l.phase == nil {
		l.phase = map[string]string{}
	}
	if p.Phase == "" || p.Phase == "waiting" || l.phase[p.Layer] == p.Phase {
		return
	}
	l.phase[p.Layer] = p.Phase
	text := p.Phase
	if p.Total > 0 {
		text += " " + size(p.Total)
	}
	fmt.Fprintf(l.w, "%s: %s\n", layerName(p.Layer), printable(text))
}

func (l *lines) close() {}

// bars shows a bar for every layer.
type bars struct {
	mu     sync.Mutex
	p      *mpb.Progress
	layers map[string]*layerBar
	closed bool
}

type layerBar struct {
	bar   *mpb.Bar
	mu    sync.Mutex
	phase string
}

func newBars(w io.Writer) *bars {
	return &bars{p: mpb.New(mpb.WithOutput(w), mpb.WithWidth(60)), layers: map[string]*layerBar{}}
}

func (b *bars) update(p box.PullProgress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	l := b.layers[p.Layer]
	if l == nil {
		l = &layerBar{}
		l.bar = b.p.AddBar(0,
			mpb.PrependDecorators(
				decor.Name(layerName(p.Layer)+" ", decor.WCSyncSpaceR),
				decor.Any(func(decor.Statistics) string {
					l.mu.Lock()
					defer l.mu.Unlock()
					return l.phase
				}, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f")))
		b.layers[p.Layer] = l
	}
	l.mu.Lock()
	l.phase = printable(p.Phase)
	l.mu.Unlock()
	if p.Total > 0 {
		l.bar.SetTotal(p.Total, false)
	}
	l.bar.SetCurrent(p.Done)
	if p.Phase == "done" || p.Phase == "cached" {
		l.bar.SetTotal(max(p.Total, p.Done), true)
	}
}

// close ends the bars as they are, also those of layers that did not finish.
func (b *bars) close() {
	b.mu.Lock()
	b.closed = true
	for _, l := range b.layers {
		l.bar.Abort(false)
	}
	b.mu.Unlock()
	b.p.Wait()
}
