// Package text holds the utilities that read and write streams of text or
// bytes. They work on input of any length unless they must see all of it
// (sort, tac), and treat bytes that are no UTF-8 exactly.
package text

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

// UTF8 reports whether the locale of the environment counts characters as
// UTF-8: everywhere but in the C and POSIX locales.
func UTF8() bool {
	for _, n := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(n); v != "" {
			return v != "C" && v != "POSIX"
		}
	}
	return true
}

// Cat is the cat utility.
func Cat(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "nbsETvAetu", Long: []string{"number|n", "number-nonblank|b", "squeeze-blank|s", "show-ends|E", "show-tabs|T", "show-nonprinting|v", "show-all|A"}})
	if !ok {
		return code
	}
	var number, nonblank, squeeze, ends, tabs, visible bool
	for _, o := range opts {
		switch o.Name {
		case "n":
			number = true
		case "b":
			nonblank = true
		case "s":
			squeeze = true
		case "E":
			ends = true
		case "T":
			tabs = true
		case "v":
			visible = true
		case "A":
			visible, ends, tabs = true, true, true
		case "e":
			visible, ends = true, true
		case "t":
			visible, tabs = true, true
		}
	}
	if !(number || nonblank || squeeze || ends || tabs || visible) {
		return c.Inputs(files, func(_ string, r io.Reader) error { return copyThrough(c, r) })
	}
	n, blank := 0, false
	fresh := true
	return c.Inputs(files, func(_ string, r io.Reader) error {
		return tool.Lines(r, '\n', func(line []byte, terminated bool) bool {
			empty := len(line) == 0
			if empty && blank && squeeze {
				return true
			}
			blank = empty
			if fresh && (nonblank && !empty || number && !nonblank) {
				n++
				c.Printf("%6d\t", n)
			}
			fresh = terminated
			if visible || tabs {
				line = show(line, visible, tabs)
			}
			c.Stdout.Write(line)
			if terminated {
				if ends {
					c.Stdout.WriteByte('$')
				}
				c.Stdout.WriteByte('\n')
			}
			return c.Stdout.Err() == nil
		})
	})
}

// copyThrough copies r to standard output as it comes. A write error is
// reported by the caller, a read error returned.
func copyThrough(c *tool.Context, r io.Reader) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			c.Stdout.Write(buf[:n])
			c.Stdout.Flush()
			if c.Stdout.Err() != nil {
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func show(line []byte, visible, tabs bool) []byte {
	var b []byte
	for _, ch := range line {
		if ch == '\t' {
			if tabs {
				b = append(b, "^I"...)
			} else {
				b = append(b, ch)
			}
			continue
		}
		if !visible {
			b = append(b, ch)
			continue
		}
		if ch >= 128 {
			b = append(b, "M-"...)
			ch -= 128
		}
		switch {
		case ch < 32:
			b = append(b, '^', ch+64)
		case ch == 127:
			b = append(b, "^?"...)
		default:
			b = append(b, ch)
		}
	}
	return b
}

// Tac prints files with their lines in reverse order.
func Tac(c *tool.Context) int {
	_, files, code, ok := c.Parse(tool.Spec{})
	if !ok {
		return code
	}
	return c.Inputs(files, func(_ string, r io.Reader) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		for len(data) > 0 {
			i := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
			c.Stdout.Write(data[i:])
			data = data[:i]
		}
		return nil
	})
}

// Rev prints each line with its characters in reverse order.
func Rev(c *tool.Context) int {
	_, files, code, ok := c.Parse(tool.Spec{})
	if !ok {
		return code
	}
	return c.Inputs(files, func(_ string, r io.Reader) error {
		return tool.Lines(r, '\n', func(line []byte, terminated bool) bool {
			for len(line) > 0 {
				_, n := utf8.DecodeLastRune(line)
				c.Stdout.Write(line[len(line)-n:])
				line = line[:len(line)-n]
			}
			if terminated {
				c.Stdout.WriteByte('\n')
			}
			return c.Stdout.Err() == nil
		})
	})
}

// Nl numbers lines.
func Nl(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "b:w:s:v:n:i:", Long: []string{"body-numbering=|b", "number-width=|w", "number-separator=|s", "starting-line-number=|v", "number-format=|n", "line-increment=|i"}})
	if !ok {
		return code
	}
	style, width, sep, n, format, step := "t", 6, "\t", 1, "rn", 1
	for _, o := range opts {
		var err error
		switch o.Name {
		case "b":
			style = o.Arg
			if style != "a" && style != "t" && style != "n" {
				return c.Fail(1, "invalid body numbering style: '%s'", o.Arg)
			}
		case "s":
			sep = o.Arg
		case "n":
			format = o.Arg
			if format != "ln" && format != "rn" && format != "rz" {
				return c.Fail(1, "invalid line numbering format: '%s'", o.Arg)
			}
		case "w":
			width, err = strconv.Atoi(o.Arg)
			if width < 1 || width > 1000 {
				err = strconv.ErrRange
			}
		case "v":
			n, err = strconv.Atoi(o.Arg)
		case "i":
			step, err = strconv.Atoi(o.Arg)
		}
		if err != nil {
			return c.Fail(1, "invalid number: '%s'", o.Arg)
		}
	}
	verb := map[string]string{"rn": "%*d", "ln": "%-*d", "rz": "%0*d"}[format]
	return c.Inputs(files, func(_ string, r io.Reader) error {
		return tool.Lines(r, '\n', func(line []byte, _ bool) bool {
			if style == "a" || style == "t" && len(line) > 0 {
				c.Printf(verb+"%s%s\n", width, n, sep, line)
				n += step
			} else {
				c.Printf("%s%s\n", strings.Repeat(" ", width+len(sep)), line)
			}
			return c.Stdout.Err() == nil
		})
	})
}

// count is the argument of head -n and tail -c: a number with a sign.
type count struct {
	n    int64
	sign byte // 0, '+' or '-'
}

func parseCount(s string) (count, error) {
	var k count
	if s != "" && (s[0] == '+' || s[0] == '-') {
		k.sign, s = s[0], s[1:]
	}
	n, err := tool.ParseSize(s)
	k.n = n
	return k, err
}

// Head is the head utility.
func Head(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "n:c:qvz", Digits: true, Long: []string{"lines=|n", "bytes=|c", "quiet|q", "silent|q", "verbose|v", "zero-terminated|z"}})
	if !ok {
		return code
	}
	k, byBytes, quiet, verbose, delim := count{n: 10}, false, false, false, byte('\n')
	for _, o := range opts {
		var err error
		switch o.Name {
		case "n", "c", "NUM":
			byBytes = o.Name == "c"
			if k, err = parseCount(o.Arg); err != nil {
				what := "lines"
				if byBytes {
					what = "bytes"
				}
				return c.Fail(1, "invalid number of %s: '%s'", what, o.Arg)
			}
		case "q":
			quiet = true
		case "v":
			verbose = true
		case "z":
			delim = 0
		}
	}
	first := true
	return c.Inputs(files, func(name string, r io.Reader) error {
		header(c, name, len(files), &first, quiet, verbose)
		switch {
		case byBytes && k.sign == '-':
			return dropBytes(c, r, k.n)
		case byBytes:
			return copyThrough(c, io.LimitReader(r, k.n))
		case k.sign == '-':
			return dropLines(c, r, k.n, delim)
		}
		if k.n == 0 {
			return nil
		}
		left := k.n
		rest := &seekBack{r: r}
		err := rest.lines(delim, func(line []byte) bool {
			c.Stdout.Write(line)
			left--
			return left > 0 && c.Stdout.Err() == nil
		})
		return err
	})
}

// seekBack reads lines and leaves the file offset after the last one used,
// when the file can seek, so that the next program reads on from there.
type seekBack struct{ r io.Reader }

func (s *seekBack) lines(delim byte, f func([]byte) bool) error {
	br := bufio.NewReaderSize(s.r, 32<<10)
	for {
		line, err := br.ReadSlice(delim)
		if err == bufio.ErrBufferFull {
			if f2 := append([]byte(nil), line...); true {
				rest, err2 := br.ReadBytes(delim)
				line, err = append(f2, rest...), err2
			}
		}
		if len(line) > 0 && !f(line) {
			if sk, ok := s.r.(io.Seeker); ok && br.Buffered() > 0 {
				_, _ = sk.Seek(-int64(br.Buffered()), io.SeekCurrent)
			}
			return nil
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func header(c *tool.Context, name string, files int, first *bool, quiet, verbose bool) {
	if files > 1 && !quiet || verbose {
		if !*first {
			c.Stdout.WriteByte('\n')
		}
		if name == "-" {
			name = "standard input"
		}
		c.Printf("==> %s <==\n", name)
	}
	*first = false
}

// dropBytes copies all but the last n bytes.
func dropBytes(c *tool.Context, r io.Reader, n int64) error {
	var held []byte
	buf := make([]byte, 32<<10)
	for {
		k, err := r.Read(buf)
		held = append(held, buf[:k]...)
		if over := int64(len(held)) - n; over > 0 {
			c.Stdout.Write(held[:over])
			held = append(held[:0], held[over:]...)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// dropLines copies all but the last n lines.
func dropLines(c *tool.Context, r io.Reader, n int64, delim byte) error {
	var held [][]byte
	return tool.Lines(r, delim, func(line []byte, terminated bool) bool {
		l := append([]byte(nil), line...)
		if terminated {
			l = append(l, delim)
		}
		held = append(held, l)
		if int64(len(held)) > n {
			c.Stdout.Write(held[0])
			held = held[1:]
		}
		return c.Stdout.Err() == nil
	})
}

// Tail is the tail utility.
func Tail(c *tool.Context) int {
	if len(c.Args) > 0 && len(c.Args[0]) > 1 && c.Args[0][0] == '+' && c.Args[0][1] >= '0' && c.Args[0][1] <= '9' {
		c.Args = append([]string{"-n", c.Args[0]}, c.Args[1:]...)
	}
	opts, files, code, ok := c.Parse(tool.Spec{Short: "n:c:fFqvzs:", Digits: true, Long: []string{"lines=|n", "bytes=|c", "follow?|f", "retry|F", "quiet|q", "silent|q", "verbose|v", "zero-terminated|z", "sleep-interval=|s", "pid="}})
	if !ok {
		return code
	}
	t := &tailer{c: c, k: count{n: 10}, delim: '\n', interval: 200 * time.Millisecond}
	quiet, verbose := false, false
	for _, o := range opts {
		var err error
		switch o.Name {
		case "n", "c", "NUM":
			t.byBytes = o.Name == "c"
			if t.k, err = parseCount(o.Arg); err != nil {
				return c.Fail(1, "invalid number of lines: '%s'", o.Arg)
			}
		case "f":
			t.follow = true
			t.byName = o.Arg == "name"
		case "F":
			t.follow, t.byName = true, true
		case "q":
			quiet = true
		case "v":
			verbose = true
		case "z":
			t.delim = 0
		case "s":
			if t.interval, err = tool.ParseInterval(o.Arg); err != nil {
				return c.Fail(1, "%v", err)
			}
		case "pid":
			if t.pid, err = strconv.Atoi(o.Arg); err != nil {
				return c.Fail(1, "invalid PID: '%s'", o.Arg)
			}
		}
	}
	first := true
	code = 0
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		r, err := c.Open(name)
		if err != nil {
			c.Errorf("cannot open '%s' for reading: %s", name, tool.Reason(err))
			code = 1
			if t.byName {
				t.files = append(t.files, &followed{name: name})
			}
			continue
		}
		header(c, name, len(files), &first, quiet, verbose)
		if err := t.print(r); err != nil {
			c.Errorf("error reading '%s': %s", name, tool.Reason(err))
			code = 1
		}
		f, isFile := r.(*os.File)
		if !t.follow || !isFile {
			r.Close()
			continue
		}
		pos, _ := f.Seek(0, io.SeekCurrent)
		t.files = append(t.files, &followed{name: name, f: f, pos: pos})
		t.last = name
	}
	if t.follow && len(t.files) > 0 {
		t.headers = len(files) > 1 && !quiet || verbose
		return t.run()
	}
	return code
}

type followed struct {
	name string
	f    *os.File
	pos  int64
}

type tailer struct {
	c        *tool.Context
	k        count
	byBytes  bool
	delim    byte
	follow   bool
	byName   bool
	interval time.Duration
	pid      int
	files    []*followed
	last     string
	headers  bool
}

func (t *tailer) print(r io.Reader) error {
	c := t.c
	switch {
	case t.k.sign == '+' && t.byBytes:
		if _, err := io.CopyN(io.Discard, r, max(t.k.n-1, 0)); err != nil && err != io.EOF {
			return err
		}
		return copyThrough(c, r)
	case t.k.sign == '+':
		br := bufio.NewReader(r)
		for skip := t.k.n - 1; skip > 0; {
			_, err := br.ReadSlice(t.delim)
			if err == nil {
				skip--
			} else if errors.Is(err, io.EOF) {
				return nil
			} else if err != bufio.ErrBufferFull {
				return err
			}
		}
		return copyThrough(c, br)
	case t.byBytes:
		if f, ok := r.(*os.File); ok {
			if end, err := f.Seek(0, io.SeekEnd); err == nil && end > 0 {
				if _, err := f.Seek(max(0, end-t.k.n), io.SeekStart); err == nil {
					return copyThrough(c, r)
				}
			}
		}
		var held []byte
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Read(buf)
			held = append(held, buf[:n]...)
			if over := int64(len(held)) - t.k.n; over > 0 {
				held = append(held[:0], held[over:]...)
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
		}
		c.Stdout.Write(held)
	default:
		if f, ok := r.(*os.File); ok {
			t.seekLines(f)
		}
		var held [][]byte
		err := tool.Lines(r, t.delim, func(line []byte, terminated bool) bool {
			l := append([]byte(nil), line...)
			if terminated {
				l = append(l, t.delim)
			}
			held = append(held, l)
			if int64(len(held)) > t.k.n {
				held = held[1:]
			}
			return true
		})
		if err != nil {
			return err
		}
		for _, l := range held {
			c.Stdout.Write(l)
		}
	}
	c.Stdout.Flush()
	return nil
}

// seekLines moves a regular file near its last lines, so that a long one need
// not be read from its beginning.
func (t *tailer) seekLines(f *os.File) {
	start, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	pos, seen := end, int64(0)
	for pos > start && seen <= t.k.n {
		n := min(int64(len(buf)), pos-start)
		pos -= n
		if _, err := f.ReadAt(buf[:n], pos); err != nil {
			pos = start
			break
		}
		seen += int64(bytes.Count(buf[:n], []byte{t.delim}))
	}
	_, _ = f.Seek(pos, io.SeekStart)
}

// run follows the files until the process is ended (or process pid has).
func (t *tailer) run() int {
	c := t.c
	buf := make([]byte, 64<<10)
	for {
		gone := t.pid > 0 && !processExists(t.pid)
		for _, fl := range t.files {
			if t.byName {
				t.reopen(fl)
			}
			if fl.f == nil {
				continue
			}
			if st, err := fl.f.Stat(); err == nil && st.Mode().IsRegular() && st.Size() < fl.pos {
				c.Errorf("%s: file truncated", fl.name)
				fl.pos, _ = fl.f.Seek(0, io.SeekStart)
			}
			for {
				n, err := fl.f.Read(buf)
				if n > 0 {
					if t.headers && t.last != fl.name {
						c.Printf("\n==> %s <==\n", fl.name)
					}
					t.last = fl.name
					fl.pos += int64(n)
					c.Stdout.Write(buf[:n])
					c.Stdout.Flush()
				}
				if n == 0 || err != nil {
					break
				}
			}
		}
		if c.Stdout.Err() != nil {
			return 1
		}
		if gone {
			return 0
		}
		time.Sleep(t.interval)
	}
}

func processExists(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

// reopen follows a name to the file that has it now.
func (t *tailer) reopen(fl *followed) {
	st, err := os.Stat(fl.name)
	if err != nil {
		return
	}
	if fl.f != nil {
		if old, err := fl.f.Stat(); err == nil && os.SameFile(st, old) {
			return
		}
	}
	f, err := tool.OpenFile(fl.name)
	if err != nil {
		return
	}
	if fl.f != nil {
		t.c.Errorf("'%s' has been replaced; following new file", fl.name)
		fl.f.Close()
	}
	fl.f, fl.pos = f, 0
}

// Tee copies standard input to standard output and files.
func Tee(c *tool.Context) int {
	opts, files, code, ok := c.Parse(tool.Spec{Short: "ai", Long: []string{"append|a", "ignore-interrupts|i"}})
	if !ok {
		return code
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	for _, o := range opts {
		switch o.Name {
		case "a":
			flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
		case "i":
			tool.IgnoreInterrupt()
		}
	}
	var outs []*os.File
	for _, name := range files {
		f, err := os.OpenFile(name, flags, 0o666)
		if err != nil {
			c.Errorf("%s: %s", name, tool.Reason(err))
			code = 1
			continue
		}
		outs = append(outs, f)
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Stdin.Read(buf)
		if n > 0 {
			c.Stdout.Write(buf[:n])
			c.Stdout.Flush()
			for i, f := range outs {
				if f == nil {
					continue
				}
				if _, err := f.Write(buf[:n]); err != nil {
					c.Errorf("%s: %s", f.Name(), tool.Reason(err))
					f.Close()
					outs[i], code = nil, 1
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return c.Fail(1, "read error: %s", tool.Reason(err))
		}
	}
	for _, f := range outs {
		if f != nil {
			if err := f.Close(); err != nil {
				c.Errorf("%s: %s", f.Name(), tool.Reason(err))
				code = 1
			}
		}
	}
	return code
}
