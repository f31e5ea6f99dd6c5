// Package tool holds what every builtin utility shares: its standard streams,
// GNU-style option parsing, sizes, and error messages in the customary form.
//
// A utility is a plain function from a *Context to an exit status. It never
// calls os.Exit, so that tests can call it in-process. A Context is for one
// run of one utility and is not safe for concurrent use.
package tool

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/term"
)

// Func is one utility: it reads c.Args, works, and returns an exit status.
type Func func(c *Context) int

// Context is what one run of a utility may use.
type Context struct {
	// Name is the name the utility was called by; it starts its messages.
	Name string
	// Args are the arguments after the name.
	Args []string
	// Stdin is standard input; an *os.File when it is a real descriptor.
	Stdin io.Reader
	// Stdout is buffered standard output, flushed by Run when the utility
	// returns and by Errorf before a message is written.
	Stdout *Output
	// Stderr is unbuffered standard error.
	Stderr io.Writer
	// Usage is the text after "Usage: NAME", printed for --help.
	Usage string
}

// Output is a buffered writer that remembers its first error. When the
// destination is a terminal each complete line is written at once.
type Output struct {
	*bufio.Writer
	dst  io.Writer
	line bool
	err  error
}

// NewOutput wraps w.
func NewOutput(w io.Writer) *Output {
	o := &Output{dst: w}
	if f, ok := w.(*os.File); ok {
		o.line = term.IsTerminal(int(f.Fd()))
	}
	o.Writer = bufio.NewWriterSize(writerFunc(o.write), 32<<10)
	return o
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (o *Output) write(p []byte) (int, error) {
	n, err := o.dst.Write(p)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// Write buffers p.
func (o *Output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if o.line && len(p) > 0 && p[len(p)-1] == '\n' {
		o.Flush()
	}
	return n, err
}

// WriteString buffers s.
func (o *Output) WriteString(s string) (int, error) {
	n, err := o.Writer.WriteString(s)
	if o.line && strings.HasSuffix(s, "\n") {
		o.Flush()
	}
	return n, err
}

// WriteByte buffers b.
func (o *Output) WriteByte(b byte) error {
	err := o.Writer.WriteByte(b)
	if o.line && b == '\n' {
		o.Flush()
	}
	return err
}

// Err returns the first error met while writing, nil when there was none.
func (o *Output) Err() error { return o.err }

// File returns the file output goes to, nil when it is no file.
func (o *Output) File() *os.File {
	f, _ := o.dst.(*os.File)
	return f
}

// Run runs f, flushes its output and turns a write error into a message and
// status 1 (unless f already failed).
func Run(f Func, c *Context) int {
	code := f(c)
	c.Stdout.Flush()
	if err := c.Stdout.Err(); err != nil {
		c.Errorf("write error: %s", Reason(err))
		if code == 0 {
			code = 1
		}
	}
	return code
}

// Errorf writes "NAME: message" and a newline to standard error, after
// flushing standard output so that the two keep their order on a terminal.
func (c *Context) Errorf(format string, args ...any) {
	c.Stdout.Flush()
	fmt.Fprintf(c.Stderr, "%s: %s\n", c.Name, fmt.Sprintf(format, args...))
}

// Fail is Errorf followed by returning code.
func (c *Context) Fail(code int, format string, args ...any) int {
	c.Errorf(format, args...)
	return code
}

// Printf formats to standard output.
func (c *Context) Printf(format string, args ...any) { fmt.Fprintf(c.Stdout, format, args...) }

// Reason is the operating system's own words for err ("No such file or
// directory"), without the operation and path that Go puts around it.
func Reason(err error) string {
	var no syscall.Errno
	if errors.As(err, &no) {
		s := no.Error()
		if s != "" {
			return strings.ToUpper(s[:1]) + s[1:]
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "No such file or directory"
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// Open opens a file for reading; "-" is standard input, which Close of the
// result leaves open.
func (c *Context) Open(name string) (io.ReadCloser, error) {
	if name == "-" {
		if f, ok := c.Stdin.(*os.File); ok {
			return stdin{f}, nil
		}
		return io.NopCloser(c.Stdin), nil
	}
	return OpenFile(name)
}

// stdin is standard input, which can seek when it is a file, but is not
// closed by whoever reads it.
type stdin struct{ *os.File }

func (stdin) Close() error { return nil }

// OpenFile opens a file for reading and refuses a directory at once, as the
// first read would.
func OpenFile(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err == nil && st.IsDir() {
		f.Close()
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EISDIR}
	}
	return f, nil
}

// Inputs calls f for each named file, standard input when there is none, and
// reports those that cannot be opened or read. It returns the exit status.
func (c *Context) Inputs(names []string, f func(name string, r io.Reader) error) int {
	if len(names) == 0 {
		names = []string{"-"}
	}
	code := 0
	for _, name := range names {
		r, err := c.Open(name)
		if err == nil {
			err = f(name, r)
			r.Close()
		}
		if c.Stdout.Err() != nil {
			return 1
		}
		if err != nil {
			c.Errorf("%s: %s", name, Reason(err))
			code = 1
		}
	}
	return code
}

// Lines calls f with each line of r without its terminator delim; last tells
// a final line that had none. A line is bounded only by memory. It stops when
// f returns false.
func Lines(r io.Reader, delim byte, f func(line []byte, terminated bool) bool) error {
	br, ok := r.(*bufio.Reader)
	if !ok {
		br = bufio.NewReaderSize(r, 32<<10)
	}
	var long []byte
	for {
		part, err := br.ReadSlice(delim)
		if err == bufio.ErrBufferFull {
			long = append(long, part...)
			continue
		}
		line := part
		if len(long) > 0 {
			long = append(long, part...)
			line = long
		}
		if err != nil {
			if len(line) > 0 && err == io.EOF {
				f(line, false)
			}
			if err == io.EOF {
				return nil
			}
			return err
		}
		if !f(line[:len(line)-1], true) {
			return nil
		}
		long = long[:0]
	}
}

// IgnoreInterrupt makes the process, and programs it becomes, ignore SIGINT.
func IgnoreInterrupt() { signal.Ignore(syscall.SIGINT) }
