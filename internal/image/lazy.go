package image

import (
	"regexp"
	"sync"
)

// lazy compiles a pattern when it is first used. Every process of a box starts
// this program, and most of them never look at an image's name.
func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
