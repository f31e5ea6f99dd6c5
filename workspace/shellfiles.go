package workspace

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// shellFiles are the files of a place that only runs commands: each operation is
// one or more small scripts. Data travels as base64, so that no transport can
// take it for text, and its length is always checked: a short file is an error.
//
// The place needs a POSIX sh and the programs in shellTools. Each command writes
// 64 KiB of base64, which Linux takes as one argument with room to spare, or
// reads 512 KiB. A file is replaced by renaming, so that readers see the old
// content or the new.
type shellFiles struct {
	run Runner
}

var (
	_ Files      = (*shellFiles)(nil)
	_ Streams    = (*shellFiles)(nil)
	_ Realpather = (*shellFiles)(nil)
)

const (
	ddBlock    = 64 << 10         // what dd is told to read at once
	shellBlock = 8 * ddBlock      // of a file, when reading: far from OutputLimit as base64
	shellChunk = 64 << 10 / 4 * 3 // of a file, when writing: 64 KiB of base64
	// maxListing bounds the memory that a listing takes.
	maxListing = 64 << 20
	// cleanupTime bounds the removal of temporary files behind a failure.
	cleanupTime = 10 * time.Second
)

// shellTools are the programs that the scripts call.
var shellTools = []string{"base64", "cp", "dd", "find", "mkdir", "mv", "readlink", "rm", "wc"}

func shellCommand(script string, args ...string) Command {
	return Command{
		Args: append([]string{"/bin/sh", "-c", script, "sh"}, args...),
		Env:  map[string]string{"LC_ALL": "C"}, // lengths are in bytes
	}
}

// script runs one, whose first argument is a path, and returns what it printed.
func (s *shellFiles) script(ctx context.Context, op, script, name string, args ...string) (string, error) {
	res, err := s.run.Run(ctx, shellCommand(script, append([]string{name}, args...)...))
	if err != nil {
		return "", err
	}
	if res.ExitCode != 0 {
		return "", s.fault(ctx, op, name, res)
	}
	return res.Stdout, nil
}

// fault is the error for a script that failed.
func (s *shellFiles) fault(ctx context.Context, op, name string, res Result) error {
	errno := func(e syscall.Errno) error { return &fs.PathError{Op: op, Path: name, Err: e} }
	switch res.ExitCode {
	case exitMissing:
		return errno(syscall.ENOENT)
	case exitPermission:
		return errno(syscall.EACCES)
	case exitExists:
		return errno(syscall.EEXIST)
	case exitNotDir:
		return errno(syscall.ENOTDIR)
	case exitIsDir:
		return errno(syscall.EISDIR)
	case exitIrregular:
		return errno(syscall.EINVAL)
	case exitLoop:
		return errno(syscall.ELOOP)
	case exitDamaged:
		return s.damaged(ctx, op, name, "not all of the data arrived")
	}
	if err := s.checkTools(ctx, op); err != nil {
		return err
	}
	if strings.Contains(res.Stderr, "No space left on device") {
		return errno(syscall.ENOSPC)
	}
	return &Error{Kind: ErrWorkspace, Op: op, Object: name,
		Err: fmt.Errorf("the shell command for it ended with status %d: %s", res.ExitCode, clip(strings.TrimSpace(Text([]byte(res.Stderr)))))}
}

// damaged is the error for data that is not what it should be. Missing programs
// are the most likely cause.
func (s *shellFiles) damaged(ctx context.Context, op, name, what string) error {
	if err := s.checkTools(ctx, op); err != nil {
		return err
	}
	return &Error{Kind: ErrDamaged, Op: op, Object: name, Err: errors.New(what)}
}

// checkTools names the programs that the place lacks.
func (s *shellFiles) checkTools(ctx context.Context, op string) error {
	res, err := s.run.Run(ctx, shellCommand(toolsScript, shellTools...))
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(strings.Fields(res.Stdout), func(t string) bool { return !slices.Contains(shellTools, t) })
	if res.ExitCode == 126 || res.ExitCode == 127 {
		missing = []string{"a POSIX /bin/sh"}
	}
	if len(missing) == 0 {
		return nil
	}
	return &Error{Kind: ErrWorkspace, Op: op, Err: errors.New("the workspace lacks " + strings.Join(missing, ", ")), Hint: "file operations need sh, " + strings.Join(shellTools, ", ")}
}

// decode undoes base64, however its lines are broken.
func decode(text string) ([]byte, error) {
	return base64.StdEncoding.DecodeString(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == ' ' {
			return -1
		}
		return r
	}, text))
}

func (s *shellFiles) Stat(ctx context.Context, name string) (Entry, error) {
	out, err := s.script(ctx, "stat", statScript, name)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Name: path.Base(name), Path: name, Size: -1}
	switch fields := strings.Fields(out); {
	case len(fields) == 1 && fields[0] == "d":
		e.Dir = true
	case len(fields) == 1 && fields[0] == "o":
	case len(fields) == 2 && fields[0] == "f":
		if fields[1] == "-" {
			break
		}
		if e.Size, err = strconv.ParseInt(fields[1], 10, 64); err != nil || e.Size < 0 {
			return Entry{}, s.damaged(ctx, "stat", name, "wc did not print a size")
		}
	default:
		return Entry{}, s.damaged(ctx, "stat", name, fmt.Sprintf("the answer %q makes no sense", clip(Text([]byte(out)))))
	}
	return e, nil
}

// size returns the size of a regular file that is to be read.
func (s *shellFiles) size(ctx context.Context, name string) (int64, error) {
	out, err := s.script(ctx, "read", statScript, name)
	if err != nil {
		return 0, err
	}
	kind, size, _ := strings.Cut(strings.TrimSpace(out), " ")
	switch kind {
	case "d":
		return 0, &fs.PathError{Op: "read", Path: name, Err: syscall.EISDIR}
	case "o":
		return 0, &fs.PathError{Op: "read", Path: name, Err: syscall.EINVAL}
	case "f":
		if size == "-" {
			return 0, &fs.PathError{Op: "read", Path: name, Err: syscall.EACCES}
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(size), 10, 64); err == nil && n >= 0 {
			return n, nil
		}
	}
	return 0, s.damaged(ctx, "read", name, "the size makes no sense")
}

// errShort says that a block was not as long as the file's size says.
var errShort = errors.New("not all of the file arrived")

// block reads the block with this number, of a file of this size.
func (s *shellFiles) block(ctx context.Context, name string, n, size int64) ([]byte, error) {
	out, err := s.script(ctx, "read", readScript, name, strconv.FormatInt(n*(shellBlock/ddBlock), 10))
	if err != nil {
		return nil, err
	}
	data, err := decode(out)
	if err != nil || int64(len(data)) != min(shellBlock, size-n*shellBlock) {
		return nil, errShort
	}
	return data, nil
}

// resized reports, after a block that was not as expected, whether the file has
// another size now; if not, what came was damaged.
func (s *shellFiles) resized(ctx context.Context, name string, size int64) (int64, error) {
	now, err := s.size(ctx, name)
	if err == nil && now == size {
		err = s.damaged(ctx, "read", name, errShort.Error())
	}
	return now, err
}

func (s *shellFiles) ReadFile(ctx context.Context, name string) ([]byte, error) {
	size, err := s.size(ctx, name)
	if err != nil {
		return nil, err
	}
	// A file that somebody writes to may have to be read again.
	for range 3 {
		if size > MaxFile {
			return nil, TooLarge(name)
		}
		data := make([]byte, 0, size)
		for n := int64(0); n*shellBlock < size; n++ {
			var part []byte
			if part, err = s.block(ctx, name, n, size); err != nil {
				break
			}
			data = append(data, part...)
		}
		if err == nil {
			return data, nil
		}
		if !errors.Is(err, errShort) {
			return nil, err
		}
		if size, err = s.resized(ctx, name, size); err != nil {
			return nil, err
		}
	}
	return nil, &Error{Kind: ErrDamaged, Op: "read", Object: name, Err: errors.New("the file changes all the time")}
}

// Open reads what the file holds now, block by block as it is wanted.
func (s *shellFiles) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	size, err := s.size(ctx, name)
	if err != nil {
		return nil, err
	}
	return &shellReader{s: s, ctx: ctx, name: name, size: size, at: min(offset, size)}, nil
}

type shellReader struct {
	s    *shellFiles
	ctx  context.Context
	name string
	size int64
	at   int64
	rest []byte
	err  error
}

func (r *shellReader) Read(p []byte) (int, error) {
	if len(p) == 0 || r.err != nil {
		return 0, r.err
	}
	if len(r.rest) == 0 {
		if r.at >= r.size {
			return 0, io.EOF
		}
		n := r.at / shellBlock
		data, err := r.s.block(r.ctx, r.name, n, r.size)
		if errors.Is(err, errShort) {
			if _, err = r.s.resized(r.ctx, r.name, r.size); err == nil {
				err = &Error{Kind: ErrDamaged, Op: "read", Object: r.name, Err: errors.New("the file changed its size while it was read")}
			}
		}
		if err != nil {
			r.err = err
			return 0, err
		}
		r.rest = data[r.at-n*shellBlock:]
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	r.at += int64(n)
	return n, nil
}

func (r *shellReader) Close() error {
	r.err, r.rest = fs.ErrClosed, nil
	return nil
}

func (s *shellFiles) WriteFile(ctx context.Context, name string, data []byte) error {
	return s.WriteFrom(ctx, name, bytes.NewReader(data))
}

func (s *shellFiles) WriteFrom(ctx context.Context, name string, r io.Reader) (err error) {
	target, err := s.Realpath(ctx, name)
	if err != nil {
		return err
	}
	if target == "/" {
		return &fs.PathError{Op: "write", Path: name, Err: syscall.EISDIR}
	}
	dir := path.Dir(target)
	temp := path.Join(dir, ".hutch-"+randomHex())
	text, file := temp+".b64", temp+".new"

	begun := false
	defer func() {
		if begun && err != nil {
			// Behind a caller that may have given up.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
			defer cancel()
			_, _ = s.run.Run(ctx, shellCommand(discardScript, text, file))
		}
	}()
	buf := make([]byte, shellChunk)
	var size, chars int64
	for last := false; !last; {
		n, rerr := io.ReadFull(r, buf)
		last = rerr == io.EOF || rerr == io.ErrUnexpectedEOF
		if rerr != nil && !last {
			return fmt.Errorf("write %s: %w", name, rerr)
		}
		chunk := base64.StdEncoding.EncodeToString(buf[:n])
		switch {
		case !begun:
			begun = true
			_, err = s.script(ctx, "write", beginScript, target, dir, text, chunk)
		case n > 0:
			_, err = s.script(ctx, "write", appendScript, text, chunk)
		}
		if err != nil {
			return renamed(err, name)
		}
		size += int64(n)
		chars += int64(len(chunk))
	}
	_, err = s.script(ctx, "write", commitScript, target, text, file, strconv.FormatInt(chars, 10), strconv.FormatInt(size, 10))
	return renamed(err, name)
}

// renamed gives a path fault the name that the caller used.
func renamed(err error, name string) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: pe.Op, Path: name, Err: pe.Err}
	}
	return err
}

func randomHex() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (s *shellFiles) ReadDir(ctx context.Context, name string) ([]Entry, error) {
	var text limitedBuffer
	cmd := shellCommand(listScript, name)
	cmd.Stdout = &text // which is not bounded as a Result is
	res, err := s.run.Run(ctx, cmd)
	if text.full {
		return nil, &Error{Kind: ErrOutputLimit, Op: "list", Object: name, Err: errors.New("the directory has too many entries")}
	}
	if err != nil {
		return nil, err
	}
	if res.ExitCode != 0 {
		return nil, s.fault(ctx, "list", name, res)
	}
	data, err := decode(text.String())
	if err != nil {
		return nil, s.damaged(ctx, "list", name, "the listing is not base64")
	}
	list, status, ok := cutLast(string(data), "end")
	if !ok || list != "" && list[len(list)-1] != 0 {
		return nil, s.damaged(ctx, "list", name, "the listing is cut short")
	}
	if status != "0" {
		res.ExitCode, _ = strconv.Atoi(status)
		return nil, s.fault(ctx, "list", name, res)
	}
	var entries []Entry
	for item := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		switch {
		case item == "" && list == "":
		case len(item) < 2 || item[0] != 'd' && item[0] != 'f':
			return nil, s.damaged(ctx, "list", name, "the listing makes no sense")
		default:
			entries = append(entries, Entry{Name: item[1:], Path: path.Join(name, item[1:]), Dir: item[0] == 'd', Size: -1})
		}
	}
	sortEntries(entries)
	return entries, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func sortEntries(entries []Entry) {
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
}

type limitedBuffer struct {
	bytes.Buffer
	full bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxListing {
		b.full = true
		return 0, errors.New("too long")
	}
	return b.Buffer.Write(p)
}

func (s *shellFiles) MkdirAll(ctx context.Context, name string) error {
	_, err := s.script(ctx, "mkdir", mkdirScript, name)
	return err
}

func (s *shellFiles) Remove(ctx context.Context, name string) error {
	_, err := s.script(ctx, "remove", removeScript, name)
	return err
}

func (s *shellFiles) Exists(ctx context.Context, name string) (bool, error) {
	res, err := s.run.Run(ctx, shellCommand(existsScript, name))
	switch {
	case err != nil:
		return false, err
	case res.ExitCode == 0:
		return true, nil
	case res.ExitCode == 1:
		return false, nil
	}
	return false, s.fault(ctx, "exists", name, res)
}

func (s *shellFiles) Realpath(ctx context.Context, name string) (string, error) {
	out, err := s.script(ctx, "realpath", realpathScript, name)
	if err != nil {
		return "", err
	}
	text, length, _ := cutLast(out, "length")
	data, err := decode(text)
	if n, lerr := strconv.Atoi(strings.TrimSpace(length)); err != nil || lerr != nil || n != len(data) || !path.IsAbs(string(data)) {
		return "", s.damaged(ctx, "realpath", name, "the path did not arrive whole")
	}
	return string(data), nil
}
