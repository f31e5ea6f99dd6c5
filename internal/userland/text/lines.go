package text

import (
	"bufio"
	"io"
)

// lineReader returns one line at a time.
type lineReader struct {
	br    *bufio.Reader
	delim byte
	err   error
}

func newLineReader(r io.Reader, delim byte) *lineReader {
	return &lineReader{br: bufio.NewReaderSize(r, 32<<10), delim: delim}
}

// next returns the next line without its terminator, in memory of its own.
func (l *lineReader) next() ([]byte, bool) {
	line, err := l.br.ReadBytes(l.delim)
	if err != nil {
		if err != io.EOF {
			l.err = err
		}
		return line, len(line) > 0
	}
	return line[:len(line)-1], true
}
