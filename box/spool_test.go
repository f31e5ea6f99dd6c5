package box

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

func bytesOf(seed uint64, n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(data)
	return data
}

// Bytes come out exactly and in order, whatever the sizes of writes and reads,
// with memory and file so small that both wrap around many times.
func TestSpoolOrder(t *testing.T) {
	for _, useWriteTo := range []bool{false, true} {
		data := bytesOf(1, 1<<20)
		s := newSpool(1000, 7001)
		go func() {
			r := rand.New(rand.NewPCG(1, 2))
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 1+r.IntN(3000))
				if err := s.write(bytes.Clone(rest[:n])); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				rest = rest[n:]
			}
			s.closeWrite(nil)
		}()
		var got bytes.Buffer
		var err error
		if useWriteTo {
			_, err = s.WriteTo(&got)
		} else {
			_, err = io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{s}, make([]byte, 777))
		}
		if err != nil || !bytes.Equal(got.Bytes(), data) {
			t.Errorf("WriteTo %v: %d of %d bytes, error %v", useWriteTo, got.Len(), len(data), err)
		}
		if s.file != nil {
			t.Error("the temporary file is still open")
		}
	}
}

// All is taken at once up to the bound, and more waits for the reader.
func TestSpoolBackPressure(t *testing.T) {
	data := bytesOf(2, 30_000)
	s := newSpool(1000, 20_000)
	if err := s.write(data[:20_500]); err != nil { // one chunk may go beyond
		t.Fatal(err)
	}
	if err := s.write(data[20_500:25_000]); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		err := errors.Join(s.write(data[25_000:26_000]), s.write(bytes.Repeat([]byte("x"), 40_000)))
		s.closeWrite(nil)
		done <- err
	}()
	select {
	case <-done:
		t.Fatal("the writer did not wait for the reader")
	case <-time.After(20 * time.Millisecond):
	}
	got, err := io.ReadAll(s)
	if err != nil || <-done != nil {
		t.Fatal(err)
	}
	if len(got) != 66_000 || !bytes.Equal(got[:26_000], data[:26_000]) {
		t.Errorf("%d bytes", len(got))
	}
}

func TestSpoolEnds(t *testing.T) {
	t.Run("error after the last byte", func(t *testing.T) {
		s := newSpool(10, 10)
		bad := errors.New("cut")
		_ = s.write([]byte("abc"))
		s.closeWrite(bad)
		got, err := io.ReadAll(s)
		if string(got) != "abc" || !errors.Is(err, bad) {
			t.Errorf("got %q and %v", got, err)
		}
	})
	t.Run("close wakes reader and writer", func(t *testing.T) {
		s := newSpool(1, 1)
		read := make(chan error, 1)
		go func() {
			_, err := s.Read(make([]byte, 1))
			read <- err
		}()
		s.Close()
		if err := <-read; !errors.Is(err, os.ErrClosed) {
			t.Errorf("read: %v", err)
		}
		if err := s.write(make([]byte, 100)); !errors.Is(err, errSpoolClosed) {
			t.Errorf("write: %v", err)
		}
	})
	t.Run("lossy never waits", func(t *testing.T) {
		s := newSpool(10, 10)
		s.makeLossy()
		for range 10 {
			if err := s.write(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
	})
	t.Run("without a place for the file, memory alone does", func(t *testing.T) {
		t.Setenv("TMPDIR", "/no/such/directory")
		data := bytesOf(3, 50_000)
		s := newSpool(1000, 1<<20)
		go func() {
			for i := 0; i < len(data); i += 500 {
				_ = s.write(bytes.Clone(data[i : i+500]))
			}
			s.closeWrite(nil)
		}()
		got, err := io.ReadAll(s)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

func TestEnds(t *testing.T) {
	var e ends
	data := bytesOf(4, 100_000)
	for i := 0; i < len(data); i += 7000 {
		_, _ = e.Write(data[i:min(len(data), i+7000)])
	}
	got := e.bytes()
	if !bytes.HasPrefix(got, data[:endSize]) || !bytes.HasSuffix(got, data[len(data)-endSize:]) || !bytes.Contains(got, []byte("34464 bytes left out")) {
		t.Errorf("%d bytes kept, middle %q", len(got), got[endSize:len(got)-endSize])
	}
}
