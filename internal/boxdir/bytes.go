package boxdir

import (
	"encoding/base64"
	"slices"
	"strings"
	"unicode/utf8"
)

// JSON holds text, but arguments, variables and paths may be any bytes. One
// that is no text is written as a zero byte, which none of them can contain,
// and the base64 of its bytes.
const encodedBytes = "\x00"

func toText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return encodedBytes + base64.StdEncoding.EncodeToString([]byte(s))
}

func fromText(s string) string {
	encoded, ok := strings.CutPrefix(s, encodedBytes)
	if !ok {
		return s
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return s
	}
	return string(raw)
}

// mapStrings returns the record with f done to every string of the caller's
// that need not be text. What r shares with others stays as it is.
func (r Record) mapStrings(f func(string) string) Record {
	all := func(list []string) []string {
		list = slices.Clone(list)
		for i, s := range list {
			list[i] = f(s)
		}
		return list
	}
	r.Spec.Env, r.Spec.Entrypoint, r.Spec.Cmd, r.Main = all(r.Spec.Env), all(r.Spec.Entrypoint), all(r.Spec.Cmd), all(r.Main)
	r.Spec.Dir, r.Spec.RootFS, r.Tree, r.Image = f(r.Spec.Dir), f(r.Spec.RootFS), f(r.Tree), f(r.Image)
	r.Spec.Volumes = slices.Clone(r.Spec.Volumes)
	for i, v := range r.Spec.Volumes {
		r.Spec.Volumes[i].Host, r.Spec.Volumes[i].Target = f(v.Host), f(v.Target)
	}
	return r
}
