// Package sandbox gives an agent a box of its own to work in, on any runtime:
//
//	rt, err := local.Open(ctx, local.Config{})
//	boxes, err := sandbox.New(rt, sandbox.Options{Image: "python:3.12-slim"})
//	ws := workspace.New(boxes.New())
//	res, err := ws.Run(ctx, workspace.Command{Args: []string{"python3", "-V"}})
//
// # Life of a box
//
// Nothing is made before the first operation, which creates and boots one box,
// however many callers come at once. Its name, "hutch-" and 32 hexadecimal digits,
// is chosen here, logged before the creation begins, and is the ID of the
// workspace's ref from then on: whatever happens, somebody knows the name.
//
// When all callers give up while the box is being made, or making it fails, what
// there is of it is removed before they return, and the ref is withdrawn: the
// next operation makes another box. Should the removal fail, the ref stays, so
// that its holder can remove the box.
//
// A box stops when nothing uses it: when the last backend on it is closed or this
// program ends. Its disk stays, and the next use of the ref boots it again. It
// stays until Provider.Destroy removes it. A box that was removed is
// workspace.ErrUnavailable and never replaced.
//
// # Which boxes
//
// A Provider attaches to and destroys only boxes with names as it makes them,
// since refs come back from message histories. The name does not prove who
// made a box; whoever can make boxes on the runtime can make one with such a name.
// FromBox works in any box that the program itself chose.
package sandbox
