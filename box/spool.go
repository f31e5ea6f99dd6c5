package box

import (
	"errors"
	"io"
	"os"
	"sync"
)

const (
	// spoolMemory is how much of one unread stream is kept in memory.
	spoolMemory = 1 << 20
	// spoolDisk is how much more of it is kept in a temporary file.
	spoolDisk = 1 << 30
)

var errSpoolClosed = errors.New("the reader closed this stream")

// spool is a queue of bytes between a command's event stream and the reader of
// one of its outputs. It lets that reader be slow without holding up the other
// output: what does not fit into memory goes to an unlinked temporary file, and
// only when that is full too does write block.
//
// There is one writer and one reader. Bytes come out in the order in which they
// went in: memory is used while the file is empty, so what is in memory is
// always older than what is in the file.
type spool struct {
	memMax, fileMax int64

	mu      sync.Mutex
	change  sync.Cond // something below changed
	chunks  [][]byte  // oldest first
	mem     int64     // bytes in chunks
	file    *os.File  // ring of fileMax bytes; nil until needed
	noFile  bool      // the file failed: block instead of spilling
	r, w    int64     // positions in the file's stream, r <= w, place = position % fileMax
	lossy   bool      // drop instead of block
	eof     bool      // the writer is done
	err     error     // what the reader gets after the last byte; nil: io.EOF
	closed  bool      // the reader is done
	reading bool      // a read of the file is under way: it must not be closed
	writing bool
}

func newSpool(memMax, fileMax int64) *spool {
	s := &spool{memMax: memMax, fileMax: fileMax}
	s.change.L = &s.mu
	return s
}

// write takes over p. It fails only when the reader has closed.
func (s *spool) write(p []byte) error {
	for len(p) > 0 {
		n, err := s.writeSome(p)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (s *spool) writeSome(p []byte) (int, error) {
	s.mu.Lock()
	for {
		switch {
		case s.closed:
			s.mu.Unlock()
			return 0, errSpoolClosed
		case s.r == s.w && s.mem < s.memMax:
			// One chunk may go beyond the bound: chunks are small beside it.
			s.r, s.w = 0, 0
			s.chunks = append(s.chunks, p)
			s.mem += int64(len(p))
			s.change.Broadcast()
			s.mu.Unlock()
			return len(p), nil
		case !s.noFile && s.w-s.r < s.fileMax:
			return s.spillLocked(p)
		case s.lossy:
			s.mu.Unlock()
			return len(p), nil
		}
		s.change.Wait()
	}
}

// spillLocked appends what it can of p to the file. It unlocks.
func (s *spool) spillLocked(p []byte) (int, error) {
	if s.file == nil {
		f, err := os.CreateTemp("", "hutch-output-*")
		if err != nil {
			s.noFile = true
			s.mu.Unlock()
			return 0, nil
		}
		// Where an open file cannot be unlinked, release removes it.
		_ = os.Remove(f.Name())
		s.file = f
	}
	if s.r == s.w {
		s.r, s.w = 0, 0
	}
	place := s.w % s.fileMax
	n := min(int64(len(p)), s.fileMax-(s.w-s.r), s.fileMax-place)
	f := s.file
	s.writing = true
	s.mu.Unlock()

	_, err := f.WriteAt(p[:n], place)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	s.releaseLocked()
	if err != nil {
		// A full disk: the bytes are not counted as written and are offered
		// again once the reader has made room in memory.
		s.noFile = true
		return 0, nil
	}
	s.w += n
	s.change.Broadcast()
	return int(n), nil
}

// closeWrite ends the stream: after the last byte the reader gets err, or
// io.EOF when that is nil.
func (s *spool) closeWrite(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.eof {
		s.eof, s.err = true, err
		s.change.Broadcast()
	}
}

// makeLossy makes write drop bytes instead of blocking, for a command that is
// being killed.
func (s *spool) makeLossy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lossy = true
	s.change.Broadcast()
}

// Read waits for bytes.
func (s *spool) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return 0, os.ErrClosed
		case len(s.chunks) > 0:
			n := copy(p, s.chunks[0])
			if n == len(s.chunks[0]) {
				s.chunks[0] = nil
				s.chunks = s.chunks[1:]
			} else {
				s.chunks[0] = s.chunks[0][n:]
			}
			s.mem -= int64(n)
			s.change.Broadcast()
			return n, nil
		case s.r < s.w:
			return s.readFileLocked(p)
		case s.eof:
			s.releaseLocked()
			if s.err != nil {
				return 0, s.err
			}
			return 0, io.EOF
		}
		s.change.Wait()
	}
}

// readFileLocked unlocks during the read.
func (s *spool) readFileLocked(p []byte) (int, error) {
	place := s.r % s.fileMax
	n := min(int64(len(p)), s.w-s.r, s.fileMax-place)
	f := s.file
	s.reading = true
	s.mu.Unlock()
	m, err := f.ReadAt(p[:n], place)
	s.mu.Lock()
	s.reading = false
	s.r += int64(m)
	s.change.Broadcast()
	s.releaseLocked()
	if m > 0 {
		return m, nil
	}
	return 0, &Error{Kind: Internal, Op: "exec", Object: "output", Err: err, Hint: "look at the disk that holds " + os.TempDir()}
}

// WriteTo passes the stream on to w, with large writes.
func (s *spool) WriteTo(w io.Writer) (int64, error) {
	var total int64
	var buf []byte
	for {
		s.mu.Lock()
		for !s.closed && len(s.chunks) == 0 && s.r == s.w && !s.eof {
			s.change.Wait()
		}
		var p []byte
		if !s.closed && len(s.chunks) > 0 {
			p = s.chunks[0]
			s.chunks[0] = nil
			s.chunks = s.chunks[1:]
			// Counted as gone only when written would be more exact; one
			// chunk in flight does not matter for the bound.
			s.mem -= int64(len(p))
			s.change.Broadcast()
		}
		s.mu.Unlock()
		if p == nil {
			if buf == nil {
				buf = make([]byte, 256<<10)
			}
			n, err := s.Read(buf)
			if errors.Is(err, io.EOF) {
				return total, nil
			}
			if err != nil {
				return total, err
			}
			p = buf[:n]
		}
		n, err := w.Write(p)
		total += int64(n)
		if err != nil {
			return total, err
		}
		if n < len(p) {
			return total, io.ErrShortWrite
		}
	}
}

// Close ends reading and drops what was not read. It may be called twice and
// while a Read waits, which then fails.
func (s *spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.chunks, s.mem = nil, 0
	s.change.Broadcast()
	s.releaseLocked()
	return nil
}

// releaseLocked closes the file once nobody needs it.
func (s *spool) releaseLocked() {
	done := s.closed || s.eof && s.r == s.w
	if s.file == nil || !done || s.reading || s.writing {
		return
	}
	_ = s.file.Close()
	_ = os.Remove(s.file.Name())
	s.file = nil
}
