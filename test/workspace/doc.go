// Package workspace runs the suite of workspaces on real boxes: on the box's own
// files, on files that are derived from its commands, and on policies over it.
// It needs the programs that run in boxes, as "make test" builds them, and is
// skipped without them.
package workspace
