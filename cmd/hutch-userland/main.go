// Command hutch-userland is the whole userland of the builtin image: a POSIX
// shell and the usual utilities in one static program, called by the name it
// is linked under.
package main

import (
	"os"

	"github.com/hutch-sandbox/hutch/internal/userland"
)

func main() { os.Exit(userland.Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) }
