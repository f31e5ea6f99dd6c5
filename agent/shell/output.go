package shell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

// errTooMuch stops a command that writes more than is kept.
var errTooMuch = errors.New("the command's output is too much")

// sink takes one stream of a command. It keeps the end in memory, and once the
// stream is longer than that, all of it in a file of the workspace.
type sink struct {
	c      *capture
	stream string
	file   string // where the whole goes

	tail  []byte
	total int64

	pipe *io.PipeWriter // to the file; nil until it is needed
	done chan error     // the file is written; holds its error
}

// capture takes both streams of a command.
type capture struct {
	ctx    context.Context
	s      *session
	call   *agent.Call
	keep   int // bytes of each stream that are kept in memory
	mu     sync.Mutex
	total  int64 // of both
	events int   // bytes that went into events
	out    *sink
	err    *sink
}

func (s *session) capture(ctx context.Context, call *agent.Call, id string, chars int) *capture {
	c := &capture{ctx: ctx, s: s, call: call, keep: chars * utf8.UTFMax}
	c.out = &sink{c: c, stream: "stdout", file: stateDir + "/" + id + ".stdout"}
	c.err = &sink{c: c, stream: "stderr", file: stateDir + "/" + id + ".stderr"}
	return c
}

// Write is called for one stream at a time; the two streams may come at the
// same time.
func (k *sink) Write(p []byte) (int, error) {
	c := k.c
	c.mu.Lock()
	c.total += int64(len(p))
	tooMuch := c.total > MaxOutputBytes
	show := p[:max(0, min(len(p), MaxEventBytes-c.events))]
	c.events += len(show)
	c.mu.Unlock()
	for len(show) > 0 {
		n := min(len(show), EventChunk)
		c.call.Emit(Output{Call: c.call.CallID, Stream: k.stream, Data: workspace.Text(show[:n])})
		show = show[n:]
	}
	if k.pipe == nil && len(k.tail)+len(p) > c.keep {
		k.spill()
	}
	if k.pipe != nil {
		if _, err := k.pipe.Write(p); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return 0, err
		}
	}
	k.total += int64(len(p))
	k.tail = append(k.tail, p...)
	if over := len(k.tail) - c.keep; over > 0 {
		k.tail = append(k.tail[:0], k.tail[over:]...)
	}
	if tooMuch {
		return 0, errTooMuch
	}
	return len(p), nil
}

// spill begins the file with what there is so far. Whoever made the capture
// waits for it, in close.
func (k *sink) spill() {
	r, w := io.Pipe()
	k.pipe, k.done = w, make(chan error, 1)
	ctx, ws, file := k.c.ctx, k.c.s.ws, k.file
	go func() {
		err := ignored(ctx, ws)
		if err == nil {
			err = ws.WriteFrom(ctx, file, r)
		}
		_ = r.CloseWithError(io.ErrClosedPipe) // a file that cannot be written does not end the command
		k.done <- err
	}()
	if _, err := w.Write(k.tail); err != nil {
		return // close reports why
	}
}

// ignored keeps our files out of the project's repository.
func ignored(ctx context.Context, ws *workspace.Workspace) error {
	const file = ".hutch/.gitignore"
	if ok, err := ws.Exists(ctx, file); err != nil || ok {
		return err
	}
	return ws.WriteFile(ctx, file, []byte("*\n"))
}

// close ends the stream, and returns why its file is not there, if it should be.
func (k *sink) close() error {
	if k.pipe == nil {
		return nil
	}
	_ = k.pipe.Close() // never fails
	return <-k.done
}

// text returns the end of the stream in at most a number of characters, and
// whether that is not all.
func (k *sink) text(chars int) (string, bool) {
	text := workspace.Text(k.tail)
	cut := k.total > int64(len(k.tail))
	if n := utf8.RuneCountInString(text); n > chars {
		cut = true
		skip := n - chars
		for i := range text {
			if skip == 0 {
				text = text[i:]
				break
			}
			skip--
		}
		// Begin with a whole line where there is one.
		if at := strings.IndexByte(text, '\n'); at >= 0 && at < len(text)/2 {
			text = text[at+1:]
		}
	}
	return text, cut
}

// render returns the two streams, labelled. Metadata comes last, where a later
// cut does not take it.
func (c *capture) render(chars int) (body string, notes []string, truncated bool) {
	errs := map[*sink]error{c.out: c.out.close(), c.err: c.err.close()}
	// Errors are worth half of the room, and what they do not need is the output's.
	stderr, cutErr := c.err.text(chars / 2)
	stdout, cutOut := c.out.text(chars - utf8.RuneCountInString(stderr))
	var b strings.Builder
	for _, part := range []struct {
		k    *sink
		text string
		cut  bool
	}{{c.out, stdout, cutOut}, {c.err, stderr, cutErr}} {
		if part.k.total == 0 {
			continue
		}
		truncated = truncated || part.cut
		b.WriteString("[" + part.k.stream + "]\n")
		b.WriteString(part.text)
		if !strings.HasSuffix(part.text, "\n") {
			b.WriteByte('\n')
		}
		switch {
		case !part.cut:
		case part.k.pipe == nil:
			notes = append(notes, fmt.Sprintf("[%s is cut to its end, %d of %d bytes]", part.k.stream, len(part.text), part.k.total))
		case errs[part.k] != nil:
			notes = append(notes, fmt.Sprintf("[%s is cut to its end, %d of %d bytes; the rest could not be kept: %v]", part.k.stream, len(part.text), part.k.total, errs[part.k]))
		default:
			notes = append(notes, fmt.Sprintf("[%s is cut to its end, %d of %d bytes; all of it is in the file %s: read_file, or for any part: tail -c +OFFSET %s | head -c COUNT]",
				part.k.stream, len(part.text), part.k.total, part.k.file, part.k.file))
		}
	}
	if b.Len() == 0 {
		b.WriteString("(no output)\n")
	}
	return b.String(), notes, truncated
}
