package vmboot_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/internal/vmboot"
)

func TestFrames(t *testing.T) {
	var buf bytes.Buffer
	want := vmboot.Message{Plan: &vmboot.Plan{
		Identity: vmboot.Identity{Time: 1, Entropy: []byte{2}, Agent: []byte("{}")},
		Net:      vmboot.Net{Address: "10.0.0.2/30", MTU: 65000},
		Mounts:   []vmboot.Mount{{Name: "0", Target: "/x", File: true}},
	}}
	if err := vmboot.Write(&buf, want); err != nil {
		t.Fatal(err)
	}
	if err := vmboot.Write(&buf, vmboot.Report{Stage: vmboot.Ready}); err != nil {
		t.Fatal(err)
	}
	var got vmboot.Message
	if err := vmboot.Read(&buf, vmboot.MaxPlan, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	var r vmboot.Report
	if err := vmboot.Read(&buf, vmboot.MaxReport, &r); err != nil || r.Stage != vmboot.Ready {
		t.Errorf("read %+v, %v", r, err)
	}
	if err := vmboot.Read(&buf, vmboot.MaxReport, &r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// FuzzRead: whatever a machine sends, reading it ends, takes no more memory
// than announced and allowed, and does not panic.
func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x11{\"stage\":\"ready\"}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x02{}\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r vmboot.Report
		err := vmboot.Read(bytes.NewReader(data), 1<<10, &r)
		if len(data) >= 4 && (data[0] > 0 || data[1] > 0 || data[2] > 4) && !errors.Is(err, vmboot.ErrTooLong) {
			t.Errorf("a long frame gives %v", err)
		}
	})
}
