package egress

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// pair is something that must not reach the box, and what it gets instead.
type pair struct{ real, shown string }

// scrubber takes values out of a response.
type scrubber struct {
	pairs   []pair
	longest int
}

// newScrubber knows the forms in which servers repeat what they were sent.
func newScrubber(subs []substitution, extra []pair) *scrubber {
	s := &scrubber{}
	add := func(real, shown string) {
		for _, p := range s.pairs {
			if p.real == real {
				return
			}
		}
		s.pairs = append(s.pairs, pair{real, shown})
		s.longest = max(s.longest, len(real))
	}
	for _, p := range extra {
		add(p.real, p.shown)
	}
	for _, sub := range subs {
		for _, form := range []func(string) string{
			func(v string) string { return v }, url.QueryEscape, url.PathEscape, html.EscapeString, jsonString,
			func(v string) string { return base64.StdEncoding.EncodeToString([]byte(v)) },
			func(v string) string { return base64.RawStdEncoding.EncodeToString([]byte(v)) },
			func(v string) string { return base64.URLEncoding.EncodeToString([]byte(v)) },
			func(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v)) },
		} {
			add(form(sub.value), form(sub.placeholder))
		}
	}
	return s
}

func jsonString(v string) string {
	data, _ := json.Marshal(v) // a string cannot fail
	return string(data[1 : len(data)-1])
}

func (s *scrubber) text(v string) string {
	for _, p := range s.pairs {
		v = strings.ReplaceAll(v, p.real, p.shown)
	}
	return v
}

func (s *scrubber) header(h http.Header) {
	for key, values := range h {
		for i := range values {
			values[i] = s.text(values[i])
		}
		if clean := s.text(key); clean != key {
			delete(h, key)
			h[clean] = values
		}
	}
}

// response makes a response fit for the box, as it streams.
func (s *scrubber) response(r *http.Response) error {
	s.header(r.Header)
	if r.StatusCode == http.StatusSwitchingProtocols {
		// Frames have lengths, so nothing can be replaced in them; but a value
		// in them ends the connection.
		if rw, ok := r.Body.(io.ReadWriteCloser); ok {
			r.Body = &guarded{ReadWriteCloser: rw, s: s}
			return nil
		}
		return errors.New("the connection cannot be watched")
	}
	if r.Body == nil || r.Body == http.NoBody || r.Request.Method == http.MethodHead {
		return nil
	}
	body := r.Body
	switch enc := strings.ToLower(r.Header.Get("Content-Encoding")); enc {
	case "", "identity":
	case "gzip", "x-gzip":
		z := &lazyGzip{r: body}
		body = readCloser{z, body}
		r.Header.Del("Content-Encoding")
	default:
		return fmt.Errorf("the server used the encoding %q, which it was not asked for", clip(enc))
	}
	r.Body = readCloser{&scrubReader{s: s, r: body, trailer: func() { s.header(r.Trailer) }}, body}
	r.ContentLength = -1
	r.Header.Del("Content-Length")
	return nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

// lazyGzip reads the header of the stream when it is first read, so that a
// response is passed on before its body has begun.
type lazyGzip struct {
	r io.Reader
	z *gzip.Reader
}

func (l *lazyGzip) Read(p []byte) (int, error) {
	if l.z == nil {
		z, err := gzip.NewReader(l.r)
		if err != nil {
			return 0, err
		}
		l.z = z
	}
	return l.z.Read(p)
}

// scrubReader replaces values in a stream. It holds back only what could be the
// beginning of one, so that events arrive when they are sent.
type scrubReader struct {
	s       *scrubber
	r       io.Reader
	in      []byte // read, not yet searched to its end
	out     []byte // searched
	err     error
	trailer func()
}

func (r *scrubReader) Read(p []byte) (int, error) {
	for len(r.out) == 0 {
		if r.err != nil {
			if r.err == io.EOF && r.trailer != nil {
				r.trailer()
				r.trailer = nil
			}
			return 0, r.err
		}
		buf := make([]byte, 32<<10)
		n, err := r.r.Read(buf)
		r.in = append(r.in, buf[:n]...)
		r.err = err
		r.out, r.in = r.s.search(r.in, err != nil)
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// search replaces what it finds and returns what may go on, and what must wait
// for more; at the end nothing waits.
func (s *scrubber) search(in []byte, end bool) (out, rest []byte) {
	for len(in) > 0 {
		at, found := -1, pair{}
		for _, p := range s.pairs {
			limit := in
			if at >= 0 {
				limit = in[:min(len(in), at+len(p.real)-1)]
			}
			if i := bytes.Index(limit, []byte(p.real)); i >= 0 && (at < 0 || i < at || i == at && len(p.real) > len(found.real)) {
				at, found = i, p
			}
		}
		if at < 0 {
			break
		}
		out = append(out, in[:at]...)
		out = append(out, found.shown...)
		in = in[at+len(found.real):]
	}
	if end {
		return append(out, in...), nil
	}
	keep := s.partial(in)
	return append(out, in[:len(in)-keep]...), bytes.Clone(in[len(in)-keep:])
}

// partial returns how many bytes at the end of in could be the beginning of a
// value.
func (s *scrubber) partial(in []byte) int {
	for n := min(len(in), s.longest-1); n > 0; n-- {
		tail := string(in[len(in)-n:])
		for _, p := range s.pairs {
			if len(p.real) > n && strings.HasPrefix(p.real, tail) {
				return n
			}
		}
	}
	return 0
}

// guarded is a connection after an upgrade. A value that comes from the server
// ends it. Only what is the beginning of a value for longer than chance explains
// is held back.
type guarded struct {
	io.ReadWriteCloser
	s    *scrubber
	past []byte // what was passed on last
	held []byte // what may be the rest of a value
	out  []byte // what is to be passed on
}

var errLeak = errors.New("the server sent a secret's value")

// shown is how much of a value's beginning is passed on.
const shown = 7

func (g *guarded) Read(p []byte) (int, error) {
	for len(g.out) == 0 {
		buf := make([]byte, 32<<10)
		n, err := g.ReadWriteCloser.Read(buf)
		fresh := append(g.held, buf[:n]...)
		seen := append(bytes.Clone(g.past), fresh...)
		for _, pair := range g.s.pairs {
			if bytes.Contains(seen, []byte(pair.real)) {
				_ = g.Close()
				return 0, errLeak
			}
		}
		hold := min(len(fresh), max(0, g.s.partial(seen)-shown))
		if err != nil {
			if len(fresh) == 0 {
				return 0, err
			}
			hold = 0
		}
		g.out, g.held = fresh[:len(fresh)-hold], bytes.Clone(fresh[len(fresh)-hold:])
		past := append(g.past, g.out...)
		g.past = bytes.Clone(past[max(0, len(past)-g.s.longest+1):])
	}
	n := copy(p, g.out)
	g.out = g.out[n:]
	return n, nil
}
