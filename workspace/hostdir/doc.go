// Package hostdir is a workspace on a folder of this machine.
//
// It isolates nothing: commands run as this program's user, and absolute paths
// lead anywhere. Use it for code that is trusted, and for tests. What it does
// guard is the environment: commands see PATH, HOME and the locale of this
// program, what Options.Env adds, and nothing else, so that secrets in variables
// stay where they are.
//
// The folder must exist. When it is gone, every operation is
// workspace.ErrUnavailable, and nothing makes a new one. It needs a POSIX system.
package hostdir
