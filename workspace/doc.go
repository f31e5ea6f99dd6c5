// Package workspace is what an agent works in: a place with commands, files or
// both, behind one small interface, whether it is a box, a folder on this
// machine or something else.
//
// # Two sides
//
// Whoever provides a place implements Backend, which says little more than
// where commands start, and as many of the optional interfaces (Runner, Files,
// Streams, Realpather, Closer, Forker) as the place can honestly do. Whoever
// uses a place makes a Workspace from it with New:
//
//	ws := workspace.New(backend)
//	err := ws.WriteText(ctx, "hello.py", "print('hello')\n")
//	res, err := ws.Run(ctx, workspace.Command{Args: []string{"python3", "hello.py"}})
//
// The Workspace checks arguments, resolves relative paths, and supplies what the
// backend left out: one that only runs commands still has files, by way of
// shell commands. What it can do is asked with Workspace.Supports.
//
// # Life
//
// Making a backend does no I/O. Its first operation creates the place or
// attaches to it. From then on Backend.Ref names it, for good: a Ref can be
// stored, and given to the same provider later to come back to the same files.
// A place that is gone is ErrUnavailable, and never replaced by an empty one.
// Nothing here destroys a place; whoever holds its Ref does, at the provider.
//
// # Results and errors
//
// A command that ran is a Result, whatever its exit status. A path that is
// missing, a directory, forbidden and so on is an *fs.PathError which errors.Is
// knows as fs.ErrNotExist or by its syscall.Errno. What the workspace itself could
// not do is an error below ErrWorkspace; see there. A caller's cancelled or
// expired context is the context's error and never ErrTimeout, which is the
// command's own time limit. A failure to reach the place is never an exit
// status, a missing file or empty output.
//
// # Policies
//
// ReadOnly refuses commands and changes, Composite adds folders from elsewhere,
// Unavailable stands where nobody supplied a workspace. Other policies embed a
// *Workspace and override some of its methods; a *Workspace is a Backend with
// every optional interface, and Supports says which of them stand for something.
//
// Package workspace/workspacetest is the suite that every backend passes;
// workspace/hostdir and workspace/sandbox are backends.
package workspace
