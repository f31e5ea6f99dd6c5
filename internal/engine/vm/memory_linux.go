package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// canCapture says whether machines can be captured on this system.
const canCapture = true

// region is a part of a process's memory that maps a part of a file.
type region struct {
	start, end int64 // addresses
	offset     int64 // in the file
}

// regions finds where the process pid maps the file with the inode ino.
func regions(pid int, ino uint64) ([]region, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []region
	for s := bufio.NewScanner(f); s.Scan(); {
		r, inode, ok := parseMapping(s.Text())
		if ok && inode == ino {
			found = append(found, r)
		}
	}
	return found, nil
}

// parseMapping reads a line of /proc/PID/maps.
func parseMapping(line string) (r region, inode uint64, ok bool) {
	f := strings.Fields(line)
	if len(f) < 5 {
		return r, 0, false
	}
	from, to, ok := strings.Cut(f[0], "-")
	var errs [4]error
	var start, end, offset uint64
	start, errs[0] = strconv.ParseUint(from, 16, 63)
	end, errs[1] = strconv.ParseUint(to, 16, 63)
	offset, errs[2] = strconv.ParseUint(f[2], 16, 63)
	inode, errs[3] = strconv.ParseUint(f[4], 10, 64)
	if !ok || errors.Join(errs[:]...) != nil || start >= end {
		return r, 0, false
	}
	return region{start: int64(start), end: int64(end), offset: int64(offset)}, inode, true
}

// Bits of an entry of /proc/PID/pagemap.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61
)

// differ writes what a process has changed of a file, since it mapped it private
// to itself, into a copy of that file. It is used twice: while the process runs,
// which writes nearly all of it, and once the process is stopped, which has to
// write little then and mostly compares.
type differ struct {
	regions []region
	pagemap *os.File
	mem     *os.File
	out     *os.File
	page    int64
	empty   bool // the file was all zero: a page of zeros is no change
}

// newDiffer opens what is needed for the process pid, which has mapped the file
// base, and for the copy at the path memory.
func newDiffer(pid int, base *os.File, memory string) (_ *differ, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(base.Fd()), &st); err != nil {
		return nil, err
	}
	d := &differ{page: int64(os.Getpagesize()), empty: st.Blocks == 0}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.regions, err = regions(pid, st.Ino); err != nil {
		return nil, err
	}
	var mapped int64
	for _, r := range d.regions {
		mapped += r.end - r.start
	}
	if mapped < st.Size {
		return nil, fmt.Errorf("only %d of %d bytes of the machine's memory were found", mapped, st.Size)
	}
	if d.pagemap, err = os.Open(fmt.Sprintf("/proc/%d/pagemap", pid)); err != nil {
		return nil, err
	}
	if d.mem, err = os.Open(fmt.Sprintf("/proc/%d/mem", pid)); err != nil {
		return nil, err
	}
	d.out, err = os.OpenFile(memory, os.O_RDWR, 0)
	return d, err
}

// close ends it; the error is that of what was written.
func (d *differ) close() error {
	for _, f := range []*os.File{d.pagemap, d.mem} {
		if f != nil {
			f.Close()
		}
	}
	if d.out == nil {
		return nil
	}
	return d.out.Close()
}

// copyRunning copies the changed pages of a process that may go on to change
// them: which were changed meanwhile, update finds.
func (d *differ) copyRunning(ctx context.Context) error {
	c := d.copier(d.write)
	for _, r := range d.regions {
		if err := c.copy(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// updaters bounds how many processors update uses: those of the machine, which
// is stopped.
const updaters = 4

// updatePiece is what one of them does at a time, in bytes.
const updatePiece = 32 << 20

// update makes the copy equal to the memory of the process, which is stopped
// and was copied before.
func (d *differ) update(ctx context.Context) error {
	pieces := make(chan region)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	for range min(runtime.NumCPU(), updaters) {
		workers.Go(func() {
			old := make([]byte, pageRun)
			c := d.copier(func(b []byte, off int64) error {
				was := old[:len(b)]
				if _, err := d.out.ReadAt(was, off); err != nil {
					return err
				}
				if bytes.Equal(was, b) {
					return nil
				}
				_, err := d.out.WriteAt(b, off)
				return err
			})
			for r := range pieces {
				if err := c.copy(ctx, r); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, r := range d.regions {
		for at := r.start; at < r.end; at += updatePiece {
			pieces <- region{start: at, end: min(at+updatePiece, r.end), offset: r.offset + at - r.start}
		}
	}
	close(pieces)
	workers.Wait()
	return context.Cause(ctx)
}

// pageRun is how much is copied at once, in bytes.
const pageRun = 256 << 10

// copier finds changed pages. Each goroutine has its own.
type copier struct {
	*differ
	entries []byte // of the page map
	buf     []byte
	take    func(b []byte, off int64) error // is given changed pages, by their place in the file
}

func (d *differ) copier(take func(b []byte, off int64) error) *copier {
	const batch = 8 << 10 // entries
	return &copier{differ: d, entries: make([]byte, batch*8), buf: make([]byte, pageRun), take: take}
}

// copy takes the changed pages of one region.
func (d *copier) copy(ctx context.Context, r region) error {
	for at := r.start; at < r.end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		count := min(int64(len(d.entries)/8), (r.end-at)/d.page)
		if count == 0 {
			break
		}
		entries := d.entries[:count*8]
		if _, err := d.pagemap.ReadAt(entries, at/d.page*8); err != nil {
			return fmt.Errorf("page map: %w", err)
		}
		for n := int64(0); n < count; n++ {
			if !changed(entries, n) {
				continue
			}
			run := int64(1)
			for n+run < count && (run+1)*d.page <= int64(len(d.buf)) && changed(entries, n+run) {
				run++
			}
			addr := at + n*d.page
			piece := d.buf[:run*d.page]
			if _, err := d.mem.ReadAt(piece, addr); err != nil {
				return fmt.Errorf("read memory: %w", err)
			}
			if err := d.take(piece, r.offset+addr-r.start); err != nil {
				return err
			}
			n += run - 1
		}
		at += count * d.page
	}
	return nil
}

func changed(entries []byte, n int64) bool {
	e := binary.LittleEndian.Uint64(entries[n*8:])
	return e&(pagePresent|pageSwapped) != 0 && e&pageOfFile == 0
}

// write writes a run of pages, and leaves out those that stay holes.
func (d *differ) write(b []byte, off int64) error {
	if !d.empty {
		_, err := d.out.WriteAt(b, off)
		return err
	}
	for len(b) > 0 {
		skip := int64(0)
		for skip < int64(len(b)) && isZero(b[skip:skip+d.page]) {
			skip += d.page
		}
		b, off = b[skip:], off+skip
		n := int64(0)
		for n < int64(len(b)) && !isZero(b[n:n+d.page]) {
			n += d.page
		}
		if n > 0 {
			if _, err := d.out.WriteAt(b[:n], off); err != nil {
				return err
			}
		}
		b, off = b[n:], off+n
	}
	return nil
}

func isZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	return true
}
