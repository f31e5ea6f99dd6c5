package agent

import (
	"encoding/json"
	"strings"

	"github.com/hutch-sandbox/hutch/agent/model"
)

// RepairJSON is a capability that mends tool arguments which are almost JSON:
// in a code fence, with a comma too many, with raw line breaks in strings, or
// cut short between two values. Text that ends in the middle of a string is
// not mended: what a file was to be written with must not be guessed.
type RepairJSON struct{}

// RepairArgs returns mended arguments, false when they cannot be.
func (RepairJSON) RepairArgs(call model.ToolCall) (string, bool) {
	text := strings.TrimSpace(call.Args)
	if inner, ok := strings.CutPrefix(text, "```"); ok {
		inner = strings.TrimPrefix(inner, "json")
		text = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(inner), "```"))
	}
	if at := strings.IndexByte(text, '{'); at > 0 && !strings.ContainsAny(text[:at], `"[`) {
		text = text[at:] // words before the object
	}
	mended, ok := mend(text)
	if !ok {
		return "", false
	}
	var v map[string]any
	if json.Unmarshal([]byte(mended), &v) != nil {
		return "", false
	}
	return mended, true
}

// mend goes through the text once, keeping account of what is open.
func mend(text string) (string, bool) {
	var b strings.Builder
	var open []byte
	inString, escaped := false, false
	for i := range len(text) {
		c := text[i]
		if inString {
			switch {
			case escaped:
				escaped = false
			case c == '\\':
				escaped = true
			case c == '"':
				inString = false
			case c == '\n':
				b.WriteString(`\n`)
				continue
			case c == '\r':
				b.WriteString(`\r`)
				continue
			case c == '\t':
				b.WriteString(`\t`)
				continue
			}
			b.WriteByte(c)
			continue
		}
		switch c {
		case '"':
			inString = true
		case '{':
			open = append(open, '}')
		case '[':
			open = append(open, ']')
		case '}', ']':
			if len(open) == 0 || open[len(open)-1] != c {
				return "", false
			}
			open = open[:len(open)-1]
			if len(open) == 0 { // what comes after the object is not part of it
				b.WriteByte(c)
				return b.String(), true
			}
		case ',':
			rest := strings.TrimLeft(text[i+1:], " \t\r\n")
			if rest == "" || rest[0] == '}' || rest[0] == ']' {
				continue // a comma too many
			}
		}
		b.WriteByte(c)
	}
	if inString || len(open) == 0 {
		return "", false
	}
	for i := len(open) - 1; i >= 0; i-- {
		b.WriteByte(open[i])
	}
	return b.String(), true
}
