package shell

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const maxHistory = 500

// editor is the line editor of an interactive shell. It reads one byte at a
// time, so that what is typed ahead goes to the command that reads next.
type editor struct {
	s       *Shell
	in, out int
	history []string
	file    string

	prompt string
	buf    []rune
	pos    int
	hist   int    // index into history while browsing
	draft  []rune // the new line, kept while browsing
	cut    []rune
	tabs   int
}

// load reads the history file; entries are appended to it as they are made.
func (e *editor) load(file string) {
	e.file = file
	if file == "" {
		return
	}
	f, err := os.Open(file)
	if err != nil {
		return
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return
	}
	for _, l := range strings.Split(string(b), "\n") {
		if l != "" {
			e.history = append(e.history, l)
		}
	}
	if n := len(e.history); n > maxHistory {
		e.history = e.history[n-maxHistory:]
	}
}

func (e *editor) remember(line string) {
	if strings.TrimSpace(line) == "" || line[0] == ' ' {
		return
	}
	if n := len(e.history); n > 0 && e.history[n-1] == line {
		return
	}
	e.history = append(e.history, line)
	if len(e.history) > maxHistory {
		e.history = e.history[1:]
	}
	if e.file == "" {
		return
	}
	if f, err := os.OpenFile(e.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(line + "\n")
		f.Close()
	}
}

// read edits one line and returns it with a newline. It returns io.EOF for
// Ctrl-D on an empty line and errInterrupt for Ctrl-C.
func (e *editor) read(prompt string) (string, error) {
	old, err := unix.IoctlGetTermios(e.in, unix.TCGETS)
	if err != nil {
		return "", err
	}
	raw := *old
	raw.Iflag &^= unix.ICRNL | unix.IXON | unix.INLCR | unix.IGNCR
	raw.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	quietly(func() { err = unix.IoctlSetTermios(e.in, unix.TCSETSW, &raw) })
	if err != nil {
		return "", err
	}
	defer quietly(func() { _ = unix.IoctlSetTermios(e.in, unix.TCSETSW, old) })
	if i := strings.LastIndexByte(prompt, '\n'); i >= 0 {
		e.write(prompt[:i+1])
		prompt = prompt[i+1:]
	}
	e.prompt, e.buf, e.pos, e.hist, e.draft = prompt, nil, 0, len(e.history), nil
	e.write(prompt)
	for {
		r, err := e.rune()
		if err != nil {
			return "", err
		}
		if r != '\t' {
			e.tabs = 0
		}
		switch r {
		case '\r', '\n':
			e.write("\n")
			line := string(e.buf)
			e.remember(line)
			return line + "\n", nil
		case 3: // Ctrl-C
			e.write("^C\n")
			return "", errInterrupt
		case 4: // Ctrl-D
			if len(e.buf) == 0 {
				return "", io.EOF
			}
			e.remove(e.pos, e.pos+1)
		case 1:
			e.pos = 0
		case 5:
			e.pos = len(e.buf)
		case 2:
			e.pos = max(0, e.pos-1)
		case 6:
			e.pos = min(len(e.buf), e.pos+1)
		case 8, 127:
			e.remove(e.pos-1, e.pos)
		case 11:
			e.cut = slices.Clone(e.buf[e.pos:])
			e.remove(e.pos, len(e.buf))
		case 21:
			e.cut = slices.Clone(e.buf[:e.pos])
			e.remove(0, e.pos)
		case 23:
			i := e.wordLeft()
			e.cut = slices.Clone(e.buf[i:e.pos])
			e.remove(i, e.pos)
		case 25:
			e.insert(e.cut)
		case 12:
			e.write("\x1b[H\x1b[2J")
		case 14:
			e.browse(1)
		case 16:
			e.browse(-1)
		case '\t':
			e.complete()
		case 27:
			if err := e.escape(); err != nil {
				return "", err
			}
		default:
			if r < ' ' {
				continue
			}
			e.insert([]rune{r})
			if e.pos == len(e.buf) && len(e.prompt)+len(e.buf) < 70 {
				e.write(string(r))
				continue
			}
		}
		e.redraw()
	}
}

func (e *editor) write(s string) { _ = writeAll(e.out, []byte(s)) }

func (e *editor) byte() (byte, error) {
	var b [1]byte
	_, err := fdReader(e.in).Read(b[:])
	return b[0], err
}

func (e *editor) rune() (rune, error) {
	var b []byte
	for {
		c, err := e.byte()
		if err != nil {
			return 0, err
		}
		b = append(b, c)
		if utf8.FullRune(b) {
			r, _ := utf8.DecodeRune(b)
			return r, nil
		}
	}
}

func (e *editor) insert(r []rune) {
	e.buf = slices.Insert(e.buf, e.pos, r...)
	e.pos += len(r)
}

func (e *editor) remove(from, to int) {
	from, to = max(from, 0), min(to, len(e.buf))
	if from >= to {
		return
	}
	e.buf = slices.Delete(e.buf, from, to)
	if e.pos > from {
		e.pos = max(from, e.pos-(to-from))
	}
}

func (e *editor) wordLeft() int {
	i := e.pos
	for i > 0 && e.buf[i-1] == ' ' {
		i--
	}
	for i > 0 && e.buf[i-1] != ' ' {
		i--
	}
	return i
}

func (e *editor) wordRight() int {
	i := e.pos
	for i < len(e.buf) && e.buf[i] == ' ' {
		i++
	}
	for i < len(e.buf) && e.buf[i] != ' ' {
		i++
	}
	return i
}

func (e *editor) browse(step int) {
	to := e.hist + step
	if to < 0 || to > len(e.history) {
		return
	}
	if e.hist == len(e.history) {
		e.draft = e.buf
	}
	e.hist = to
	if to == len(e.history) {
		e.buf = e.draft
	} else {
		e.buf = []rune(e.history[to])
	}
	e.pos = len(e.buf)
}

// escape handles what follows the escape character: arrow and editing keys.
func (e *editor) escape() error {
	c, err := e.byte()
	if err != nil {
		return err
	}
	switch c {
	case 'b':
		e.pos = e.wordLeft()
		return nil
	case 'f':
		e.pos = e.wordRight()
		return nil
	case '[', 'O':
	default:
		return nil
	}
	var seq []byte
	for len(seq) < 16 {
		if c, err = e.byte(); err != nil {
			return err
		}
		seq = append(seq, c)
		if c >= '@' && c <= '~' {
			break
		}
	}
	switch string(seq) {
	case "A":
		e.browse(-1)
	case "B":
		e.browse(1)
	case "C":
		e.pos = min(len(e.buf), e.pos+1)
	case "D":
		e.pos = max(0, e.pos-1)
	case "H", "1~", "7~":
		e.pos = 0
	case "F", "4~", "8~":
		e.pos = len(e.buf)
	case "3~":
		e.remove(e.pos, e.pos+1)
	case "1;5C":
		e.pos = e.wordRight()
	case "1;5D":
		e.pos = e.wordLeft()
	}
	return nil
}

// redraw shows the line again. A line wider than the terminal shows the part
// around the cursor.
func (e *editor) redraw() {
	width := 80
	if ws, err := unix.IoctlGetWinsize(e.out, unix.TIOCGWINSZ); err == nil && ws.Col > 0 {
		width = int(ws.Col)
	}
	room := max(10, width-utf8.RuneCountInString(e.prompt)-1)
	from := 0
	if e.pos > room {
		from = e.pos - room
	}
	to := min(len(e.buf), from+room)
	back := to - e.pos
	out := "\r" + e.prompt + string(e.buf[from:to]) + "\x1b[K"
	if back > 0 {
		out += "\x1b[" + itoa(back) + "D"
	}
	e.write(out)
}

// complete finishes the word before the cursor from commands and files; a
// second Tab lists what there is.
func (e *editor) complete() {
	start := e.pos
	for start > 0 && !strings.ContainsRune(" |;&<>()`=", e.buf[start-1]) {
		start--
	}
	word := string(e.buf[start:e.pos])
	var found []string
	before := strings.TrimRight(string(e.buf[:start]), " ")
	first := before == "" || strings.ContainsAny(before[len(before)-1:], "|;&(`")
	if first && !strings.Contains(word, "/") {
		found = e.commands(word)
	} else {
		found = e.files(word)
	}
	if len(found) == 0 {
		return
	}
	common := found[0]
	for _, f := range found[1:] {
		for !strings.HasPrefix(f, common) {
			common = common[:len(common)-1]
		}
	}
	if len(common) > len(word) && utf8.ValidString(common) {
		e.insert([]rune(common[len(word):]))
		if len(found) == 1 && !strings.HasSuffix(common, "/") {
			e.insert([]rune{' '})
		}
		e.tabs = 0
		return
	}
	if len(found) == 1 {
		return
	}
	if e.tabs++; e.tabs > 1 {
		names := make([]string, 0, len(found))
		for _, f := range found[:min(len(found), 100)] {
			n := filepath.Base(f)
			if strings.HasSuffix(f, "/") {
				n += "/"
			}
			names = append(names, n)
		}
		e.write("\n" + strings.Join(names, "  ") + "\n")
	}
}

func (e *editor) commands(prefix string) []string {
	set := map[string]bool{}
	for _, n := range e.s.commandNames() {
		if strings.HasPrefix(n, prefix) {
			set[n] = true
		}
	}
	for _, dir := range strings.Split(e.s.get("PATH"), ":") {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, en := range entries {
			if strings.HasPrefix(en.Name(), prefix) {
				set[en.Name()] = true
			}
		}
	}
	var l []string
	for n := range set {
		l = append(l, n)
	}
	slices.Sort(l)
	return l
}

func (e *editor) files(word string) []string {
	dir, base := "", word
	if i := strings.LastIndexByte(word, '/'); i >= 0 {
		dir, base = word[:i+1], word[i+1:]
	}
	real := dir
	if strings.HasPrefix(real, "~/") {
		real = e.s.get("HOME") + real[1:]
	}
	if real == "" {
		real = "."
	}
	entries, err := os.ReadDir(real)
	if err != nil {
		return nil
	}
	var l []string
	for _, en := range entries {
		n := en.Name()
		if !strings.HasPrefix(n, base) || base == "" && n[0] == '.' {
			continue
		}
		if st, err := os.Stat(filepath.Join(real, n)); err == nil && st.IsDir() {
			n += "/"
		}
		l = append(l, dir+n)
	}
	return l
}
