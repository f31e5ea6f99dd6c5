// Package box is what most people meet of Hutch: boxes, and the commands,
// files and servers in them.
//
// A box is a machine with its own kernel, file system and network. A [Runtime]
// is where boxes live: package box/local opens one on this machine. The shapes
// are those of the standard library, so that there is little to learn: [Cmd]
// is used like os/exec's Cmd, [File] like os.File, [Box.FS] is an io/fs.FS and
// [Box.DialContext] fits into an http.Transport.
//
//	rt, err := local.Open(ctx, local.Config{})
//	...
//	defer rt.Close()
//	b, err := rt.Create(ctx, box.Spec{Image: "python:3.12-slim"})
//	...
//	defer b.Remove(ctx)
//	out, err := b.Command(ctx, "python", "-c", "print(6*7)").Output()
//
// Create writes the box down and checks the whole spec; the box boots when it
// is first used. Any command, file operation or dial wakes a stopped box, and
// keeps it running until it has ended, also when the box's main command ends
// before.
//
// # Errors
//
// Errors are *[Error] with a [Kind] (test with errors.Is and ErrNotFound and
// its siblings), except that a command which ran and failed is an *[ExitError]
// and a file operation which the box's kernel refused is an *fs.PathError.
//
// # Concurrency
//
// Runtime and Box may be used by any number of goroutines at once. A Cmd and a
// File follow the rules of their standard-library models.
//
// The package imports only the standard library; drivers implement [Driver].
package box
