package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/docker/go-units"

	"github.com/hutch-sandbox/hutch/box"
)

// printable makes text that a box, an image or a registry may have chosen safe
// to show on a terminal: control and other invisible characters, and bytes
// that are not UTF-8, are written as escapes. The result is one line.
func printable(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// table prints rows in aligned columns. Cells are made printable.
type table struct {
	w    *tabwriter.Writer
	err  error
	line []string
}

func newTable(w io.Writer, columns ...string) *table {
	t := &table{w: tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)}
	t.row(columns...)
	return t
}

func (t *table) row(cells ...string) {
	t.line = t.line[:0]
	for _, c := range cells {
		t.line = append(t.line, printable(c))
	}
	if _, err := fmt.Fprintln(t.w, strings.Join(t.line, "\t")); err != nil && t.err == nil {
		t.err = err
	}
}

// flush prints the table.
func (t *table) flush() error {
	if t.err != nil {
		return t.err
	}
	return t.w.Flush()
}

// println prints one line of text for people.
func (e *env) println(text string) error {
	_, err := io.WriteString(e.stdout, printable(text)+"\n")
	return err
}

// document prints v as an indented JSON document.
func (e *env) document(v any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// record prints v as one line of JSON.
func (e *env) record(v any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// results collects what a command did to each of several boxes, for --json.
type results struct {
	env   *env
	items []result
}

// result is one of them.
type result struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Exit is set by wait.
	Exit *box.ExitStatus `json:"exit,omitempty"`
}

// add prints ref as docker does, or keeps the item for the document.
func (r *results) add(ref string, item result) error {
	if r.env.json {
		r.items = append(r.items, item)
		return nil
	}
	return r.env.println(ref)
}

// finish prints the document, also after a failure: what was done was done.
func (r *results) finish(err error) error {
	if r.env.json {
		if r.items == nil {
			r.items = []result{}
		}
		if derr := r.env.document(r.items); err == nil {
			err = derr
		}
	}
	return err
}

// ago is docker's "2 minutes ago"; empty for no time.
func (e *env) ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return units.HumanDuration(e.Now().Sub(t)) + " ago"
}

// size is "1.5GiB".
func size(n int64) string { return units.BytesSize(float64(n)) }

// status describes a box's state as docker does.
func (e *env) status(info box.Info) string {
	since := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return " " + units.HumanDuration(e.Now().Sub(t))
	}
	switch info.State {
	case box.Created:
		return "Created"
	case box.Starting:
		return "Starting"
	case box.Running:
		return "Up" + since(info.StartedAt)
	case box.Stopping:
		return "Stopping"
	case box.Stopped:
		s := "Stopped"
		if info.Exit != nil {
			s = fmt.Sprintf("Exited (%d)", info.Exit.Code)
			if info.Exit.Reason == box.OutOfMemory {
				s = fmt.Sprintf("Out of memory (%d)", info.Exit.Code)
			}
		}
		if !info.StoppedAt.IsZero() {
			s += since(info.StoppedAt) + " ago"
		}
		return s
	case box.Failed:
		if info.Reason != "" {
			return "Failed: " + clip(info.Reason)
		}
		return "Failed"
	}
	return string(info.State)
}

// mainCommand is a box's main command as one text; empty without one.
func mainCommand(info box.Info, full bool) string {
	if len(info.Main) == 0 {
		return "-"
	}
	s := strings.Join(info.Main, " ")
	if r := []rune(s); !full && len(r) > 20 {
		s = string(r[:19]) + "…"
	}
	return `"` + s + `"`
}
