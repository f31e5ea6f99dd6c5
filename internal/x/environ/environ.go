// Package environ lays environments of processes over each other.
package environ

import "strings"

// Merge lays lists of "KEY=value" over each other: the last entry of a key
// wins, in the place of its first. Bytes are kept as they are. It returns a new
// list; nil when there is no entry.
func Merge(layers ...[]string) []string {
	at := make(map[string]int)
	var env []string
	for _, layer := range layers {
		for _, kv := range layer {
			key, _, _ := strings.Cut(kv, "=")
			if i, ok := at[key]; ok {
				env[i] = kv
				continue
			}
			at[key] = len(env)
			env = append(env, kv)
		}
	}
	return env
}
