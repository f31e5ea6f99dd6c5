package boxdir

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/box"
)

// A record comes back from the disk as it was, whatever bytes are in it, and
// is no different for the caller who wrote it.
func TestRecordBytes(t *testing.T) {
	want := Record{
		Version: 1, ID: "abc", Name: "name", Main: []string{"a", "\xff\xfe", ""}, Tree: "/t\xf0", Image: "/t\xf0",
		Spec: box.Spec{
			Env: []string{"A=\xff", "B=é\n\"", "C="}, Entrypoint: []string{"\x80"}, Cmd: []string{"\xff\xfe"},
			Dir: "/\xff", RootFS: "/t\xf0", Volumes: []box.Volume{{Host: "/h\xff", Target: "/t\xff"}, {Name: "n", Target: "/x"}},
		},
	}
	dir := t.TempDir()
	given := want.mapStrings(func(s string) string { return s })
	if err := writeRecord(dir, given, true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, given); diff != "" {
		t.Errorf("writing changed the record:\n%s", diff)
	}
	got, err := (&Box{dir: dir}).Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		data, _ := os.ReadFile(dir + "/box.json")
		t.Errorf("it came back as another:\n%s\n%s", diff, data)
	}
}
