package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
)

func TestDetachReader(t *testing.T) {
	keys := []byte{16, 17}
	for _, tt := range []struct {
		in, out  string
		detached bool
	}{
		{"plain", "plain", false},
		{"ab\x10\x11cd", "ab", true},
		{"\x10\x11", "", true},
		{"a\x10b", "a\x10b", false},
		{"a\x10\x10\x11b", "a\x10", true},
		{"end\x10", "end\x10", false},
		{"\x11\x10", "\x11\x10", false},
	} {
		for how, r := range map[string]io.Reader{
			"whole":        strings.NewReader(tt.in),
			"byte by byte": iotest.OneByteReader(strings.NewReader(tt.in)),
			"data and EOF": iotest.DataErrReader(strings.NewReader(tt.in)),
		} {
			got, err := io.ReadAll(&detachReader{r: r, keys: keys})
			if errors.Is(err, errDetached) != tt.detached || (err != nil) != tt.detached {
				t.Errorf("%q %s: error %v, detached should be %v", tt.in, how, err, tt.detached)
			}
			if string(got) != tt.out {
				t.Errorf("%q %s: passed on %q, want %q", tt.in, how, got, tt.out)
			}
		}
	}
}

// TestReadEndsWithContext is what lets hutch end while nobody types.
func TestReadEndsWithContext(t *testing.T) {
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pw.Close()
	defer pr.Close()
	ior, iow := io.Pipe()
	defer iow.Close()
	for name, r := range map[string]io.Reader{"file": pr, "other": ior} {
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		in, release, err := readerWithContext(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			_, err := in.Read(make([]byte, 10))
			got <- err
		}()
		cancel(cause)
		if err := <-got; !errors.Is(err, cause) {
			t.Errorf("%s: the read ended with %v, want the context's cause", name, err)
		}
		release()
	}
}

func TestReadPassesFilesOn(t *testing.T) {
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	want := bytes.Repeat([]byte("\xff\x00\xfe"), 100_000)
	go func() {
		_, _ = pw.Write(want)
		_ = pw.Close()
	}()
	in, release, err := readerWithContext(t.Context(), pr)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if got, err := io.ReadAll(in); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes and %v, want %d", len(got), err, len(want))
	}
}
