package vm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

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

// addChangedMemory writes the pages that the stopped process pid has changed
// since it mapped the file base, private to itself, into the file memory.
func addChangedMemory(ctx context.Context, pid int, base *os.File, memory string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(base.Fd()), &st); err != nil {
		return err
	}
	maps, err := regions(pid, st.Ino)
	if err != nil {
		return err
	}
	var mapped int64
	for _, r := range maps {
		mapped += r.end - r.start
	}
	if mapped < st.Size {
		return fmt.Errorf("only %d of %d bytes of the machine's memory were found", mapped, st.Size)
	}
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return err
	}
	defer pagemap.Close()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	out, err := os.OpenFile(memory, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	d := differ{pagemap: pagemap, mem: mem, out: out, page: int64(os.Getpagesize()), empty: st.Blocks == 0}
	for _, r := range maps {
		if err := d.copy(ctx, r); err != nil {
			return err
		}
	}
	return out.Close()
}

// differ copies changed pages.
type differ struct {
	pagemap, mem io.ReaderAt
	out          io.WriterAt
	page         int64
	empty        bool // the file was all zero: a page of zeros is no change
}

// copy copies the changed pages of one region.
func (d *differ) copy(ctx context.Context, r region) error {
	const batch = 64 << 10 // entries
	entries := make([]byte, batch*8)
	buf := make([]byte, 1<<20)
	for at := r.start; at < r.end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		count := min(batch, (r.end-at)/d.page)
		if count == 0 {
			break
		}
		if _, err := d.pagemap.ReadAt(entries[:count*8], at/d.page*8); err != nil {
			return fmt.Errorf("page map: %w", err)
		}
		for n := int64(0); n < count; n++ {
			if !changed(entries, n) {
				continue
			}
			run := int64(1)
			for n+run < count && (run+1)*d.page <= int64(len(buf)) && changed(entries, n+run) {
				run++
			}
			addr := at + n*d.page
			piece := buf[:run*d.page]
			if _, err := d.mem.ReadAt(piece, addr); err != nil {
				return fmt.Errorf("read memory: %w", err)
			}
			if err := d.write(piece, r.offset+addr-r.start); err != nil {
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
