package files

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/hutch-sandbox/hutch/internal/userland/tool"
)

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// ddRun is the copying part of dd.
type ddRun struct {
	r       io.Reader
	w       io.Writer
	file    *os.File
	obs     int
	conv    map[string]bool
	pending []byte

	inFull, inPart, outFull, outPart, total int64
}

func (d *ddRun) run(ibs int, count int64, full, countBytes bool) error {
	buf := make([]byte, ibs)
	left := count
	for count < 0 || left > 0 {
		want := ibs
		if countBytes && left < int64(want) {
			want = int(left)
		}
		var n int
		var err error
		if full {
			n, err = io.ReadFull(d.r, buf[:want])
			if err == io.ErrUnexpectedEOF {
				err = io.EOF
			}
		} else {
			n, err = d.r.Read(buf[:want])
		}
		if n == ibs {
			d.inFull++
		} else if n > 0 {
			d.inPart++
		}
		if countBytes {
			left -= int64(n)
		} else {
			left--
		}
		if n > 0 {
			data := buf[:n]
			if d.conv["sync"] && n < ibs {
				clear(buf[n:])
				data = buf
			}
			if e := d.put(d.convert(data), ibs == d.obs); e != nil {
				return e
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			if d.conv["noerror"] && n == 0 {
				if s, ok := d.r.(io.Seeker); ok {
					if _, e := s.Seek(int64(ibs), io.SeekCurrent); e == nil {
						continue
					}
				}
			}
			return fmt.Errorf("error reading: %s", tool.Reason(err))
		}
	}
	if len(d.pending) > 0 {
		return d.write(d.pending)
	}
	return nil
}

func (d *ddRun) convert(b []byte) []byte {
	switch {
	case d.conv["ucase"]:
		b = bytes.ToUpper(b)
	case d.conv["lcase"]:
		b = bytes.ToLower(b)
	}
	if d.conv["swab"] {
		for i := 0; i+1 < len(b); i += 2 {
			b[i], b[i+1] = b[i+1], b[i]
		}
	}
	return b
}

// put writes blocks of the output size; with equal sizes blocks stay as read.
func (d *ddRun) put(b []byte, same bool) error {
	if same {
		return d.write(b)
	}
	d.pending = append(d.pending, b...)
	rest := d.pending
	for len(rest) >= d.obs {
		if err := d.write(rest[:d.obs]); err != nil {
			return err
		}
		rest = rest[d.obs:]
	}
	d.pending = append(d.pending[:0], rest...)
	return nil
}

func (d *ddRun) write(b []byte) error {
	if d.conv["sparse"] && d.file != nil && len(bytes.Trim(b, "\x00")) == 0 {
		end, err := d.file.Seek(int64(len(b)), io.SeekCurrent)
		if err == nil {
			if st, e := d.file.Stat(); e == nil && st.Size() < end {
				err = d.file.Truncate(end)
			}
		}
		if err != nil {
			return fmt.Errorf("error writing: %s", tool.Reason(err))
		}
	} else if _, err := d.w.Write(b); err != nil {
		return fmt.Errorf("error writing: %s", tool.Reason(err))
	}
	d.total += int64(len(b))
	if len(b) == d.obs {
		d.outFull++
	} else {
		d.outPart++
	}
	return nil
}
