//go:build linux

package agent

import (
	"os"
	"testing"

	"connectrpc.com/connect"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
)

func BenchmarkExec(b *testing.B) {
	r := newRig(b, Config{})
	for b.Loop() {
		s, err := r.process.Start(b.Context(), connect.NewRequest(&hutchv1.StartRequest{Args: argv("true")}))
		if err != nil {
			b.Fatal(err)
		}
		if o, err := collect(s); err != nil || o.exit.GetCode() != 0 {
			b.Fatal(o.exit, err)
		}
	}
}

const benchSize = 64 << 20

func BenchmarkRead(b *testing.B) {
	r := newRig(b, Config{})
	if err := os.WriteFile(r.dir+"/f", make([]byte, benchSize), 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(benchSize)
	for b.Loop() {
		s, err := r.files.Read(b.Context(), connect.NewRequest(&hutchv1.ReadRequest{Path: []byte("f")}))
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for s.Receive() {
			n += len(s.Msg().GetData())
		}
		s.Close()
		if n != benchSize || s.Err() != nil {
			b.Fatal(n, s.Err())
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	r := newRig(b, Config{})
	data := make([]byte, 256<<10)
	b.SetBytes(benchSize)
	for b.Loop() {
		s := r.files.Write(b.Context())
		_ = s.Send(&hutchv1.WriteRequest{Header: &hutchv1.WriteHeader{Path: []byte("w")}})
		for range benchSize / len(data) {
			if err := s.Send(&hutchv1.WriteRequest{Data: data}); err != nil {
				b.Fatal(err)
			}
		}
		_ = s.Send(&hutchv1.WriteRequest{Complete: true})
		if _, err := s.CloseAndReceive(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOutput(b *testing.B) {
	r := newRig(b, Config{})
	if err := os.WriteFile(r.dir+"/f", make([]byte, benchSize), 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(benchSize)
	for b.Loop() {
		s, err := r.process.Start(b.Context(), connect.NewRequest(&hutchv1.StartRequest{Args: argv("cat", "f")}))
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for s.Receive() {
			n += len(s.Msg().GetOutput().GetData())
		}
		s.Close()
		if n != benchSize || s.Err() != nil {
			b.Fatal(n, s.Err())
		}
	}
}
