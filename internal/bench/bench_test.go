package main

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSample(t *testing.T) {
	for _, tc := range []struct {
		values      []float64
		median, p95 float64
	}{
		{nil, 0, 0},
		{[]float64{3}, 3, 3},
		{[]float64{4, 1}, 2.5, 4},
		{[]float64{9, 1, 5}, 5, 9},
		{[]float64{20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 10.5, 19},
	} {
		s := sample{values: tc.values}
		if got := s.median(); got != tc.median {
			t.Errorf("median of %v = %v, want %v", tc.values, got, tc.median)
		}
		if got := s.quantile(0.95); got != tc.p95 {
			t.Errorf("95th percentile of %v = %v, want %v", tc.values, got, tc.p95)
		}
	}
}

func TestCell(t *testing.T) {
	for _, tc := range []struct {
		s    *sample
		want string
	}{
		{nil, "–"},
		{&sample{skip: "needs root"}, "– (needs root)"},
		{&sample{attempts: 2, failure: "boom"}, "failed: boom"},
		{&sample{attempts: 1, values: []float64{1.234}}, "**1.23**"},
		{&sample{attempts: 3, values: []float64{10, 200}, failure: "boom"}, "**105** (p95 200; 10.0–200); 2 of 3 worked"},
	} {
		if got := tc.s.cell(); got != tc.want {
			t.Errorf("cell of %+v = %q, want %q", tc.s, got, tc.want)
		}
	}
}

// TestMarkdown: every row has as many cells as the head, whatever happened, and
// what did not work is said.
func TestMarkdown(t *testing.T) {
	one := newResult("first", "create → first output", "ms")
	one.of("hutch").ok(50)
	one.of("runsc").ok(100)
	one.of("runsc").fail(errors.New("line one\nline two"))
	two := newResult("copy", "copy in", "MB/s")
	two.moreIsBetter = true
	two.of("hutch").fail(errors.New("a | b"))
	r := &report{
		start: time.Unix(0, 0), end: time.Unix(60, 0),
		columns: []column{{name: "hutch", how: []string{"as a library"}}, {name: "runsc"}, {name: "podman", reason: "not installed"}},
		results: []*result{one, two},
	}
	text := r.markdown()
	for _, want := range []string{
		"podman could not run: not installed",
		"create → first output, runsc: 1 of 2 attempts failed, the first with: line one line two",
		"| 0.50 |", // hutch ÷ runsc
		"* as a library",
		"copy in, MB/s ↑",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	cells := regexp.MustCompile(`[^\\]\|`)
	var counts []int
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "|") {
			counts = append(counts, len(cells.FindAllString(line, -1)))
		}
	}
	if want := []int{8, 8, 8, 8}; !cmp.Equal(want, counts) {
		t.Errorf("cells in the lines of the table: %v, want %v:\n%s", counts, want, text)
	}
}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		args []string
		err  string
	}{
		{nil, ""},
		{[]string{"-quick", "-only", "first,exec", "-rounds", "3"}, ""},
		{[]string{"-only", "nosuch"}, `-only "nosuch": no such row`},
		{[]string{"-rounds", "0"}, "-rounds 0"},
		{[]string{"-image", "alpine"}, `-image "alpine"`},
		{[]string{"more"}, `unexpected argument "more"`},
	} {
		_, err := parse(tc.args, io.Discard)
		switch {
		case tc.err == "" && err != nil:
			t.Errorf("%q: %v", tc.args, err)
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%q: error %v, want %q", tc.args, err, tc.err)
		}
	}
	full, _ := parse(nil, io.Discard)
	if full.creates != 100 || full.copySize != 256<<20 || full.files != 20_000 || full.density != 20 {
		t.Errorf("a full run is %+v", full)
	}
}

func TestParseStat(t *testing.T) {
	got, ok := parseStat("42 (a) b (c) S 7 42 42 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 1 0 99")
	want := process{ppid: 7, comm: "a) b (c", cpu: 2 * time.Second}
	if !ok || got != want {
		t.Errorf("parseStat = %+v, %v, want %+v", got, ok, want)
	}
	for _, line := range []string{"", "1 (x", "1 (x) S", "1 (x) S a b c d e f g h i j k l m"} {
		if _, ok := parseStat(line); ok {
			t.Errorf("parseStat(%q) accepted it", line)
		}
	}
}

func TestDescend(t *testing.T) {
	table := []process{{pid: 1}, {pid: 2, ppid: 1}, {pid: 3, ppid: 2}, {pid: 4, ppid: 1}, {pid: 5, ppid: 3}}
	got := descend(table, []int{2, 3})
	slices.Sort(got)
	if want := []int{2, 3, 5}; !cmp.Equal(want, got) {
		t.Errorf("descend = %v, want %v", got, want)
	}
}

func TestPSS(t *testing.T) {
	kb, err := pssLine(bufio.NewScanner(strings.NewReader("00-ff ---p 0 0:0 0 [rollup]\nRss:  9 kB\nPss:     1234 kB\nPss_Dirty: 5 kB\n")))
	if err != nil || kb != 1234 {
		t.Errorf("pssLine = %d, %v", kb, err)
	}
	mine, err := pss([]int{os.Getpid()})
	if err != nil || mine <= 0 {
		t.Errorf("pss of this process = %d, %v", mine, err)
	}
}

func TestTimeFirst(t *testing.T) {
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write([]byte("rea"))
		_, _ = w.Write([]byte("dy\n"))
		w.Close()
	}()
	took, got, err := timeFirst(time.Now(), r)
	if err != nil || took <= 0 || checkWord(got) != nil {
		t.Errorf("timeFirst = %v, %q, %v", took, got, err)
	}
	if _, _, err := timeFirst(time.Now(), strings.NewReader("")); err == nil {
		t.Error("no output was taken for output")
	}
	if checkWord("readyready") == nil {
		t.Error("another word was taken for the right one")
	}
}

// TestWriteTree: the archive is what it says, and the same each time but for
// git's and the file system's times.
func TestWriteTree(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	dir := t.TempDir()
	archive := filepath.Join(dir, "files.tar")
	if _, err := writeTree(context.Background(), archive, filepath.Join(dir, "files"), 250); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "files")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := 0
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Fatalf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		if !strings.HasPrefix(h.Name, "files/") {
			t.Fatalf("%s is not in the folder", h.Name)
		}
		if strings.HasPrefix(h.Name, "files/part") && h.Typeflag == tar.TypeReg {
			files++
		}
	}
	if files != 250 {
		t.Errorf("%d files, want 250", files)
	}
}

func TestCheckSum(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	sum, err := writeRandom(name, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkSum(name, sum); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(name, 99_999); err != nil {
		t.Fatal(err)
	}
	if checkSum(name, sum) == nil {
		t.Error("a short copy passed")
	}
}

// TestPeerVersion: runsc is built of the version that Hutch links.
func TestPeerVersion(t *testing.T) {
	version := regexp.MustCompile(`gvisor\.dev/gvisor (v\S+)`)
	var found []string
	for _, name := range []string{"../../go.mod", "../../tools/runsc/go.mod"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m := version.FindSubmatch(data)
		if m == nil {
			t.Fatalf("%s does not require gVisor", name)
		}
		found = append(found, string(m[1]))
	}
	if found[0] != found[1] {
		t.Errorf("go.mod has gVisor %s, tools/runsc/go.mod %s: go get -C tools/runsc gvisor.dev/gvisor/runsc@%s", found[0], found[1], found[0])
	}
}
