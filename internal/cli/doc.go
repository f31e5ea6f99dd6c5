// Package cli is the hutch command: it turns arguments into calls of a
// [box.Runtime] and answers into text, JSON and exit statuses.
//
// [Main] runs one command. Everything a command may touch of its process comes
// in an [App]: arguments, environment, working directory, standard streams,
// clock, signals and the way to open a runtime. Nothing here reads os.Args,
// os.Environ or os.Stdin, nothing calls os.Exit and there is no package state,
// so tests run any number of commands at once in one process.
//
// # How it is laid out
//
// One file holds one command and is named like it (run.go, exec.go, ps.go; the
// image commands are image_*.go). The rest is shared:
//
//	app.go     App, Main, signals, and how an error becomes one line and a status
//	root.go    the list of commands, global flags, help
//	flags.go   flag values that explain themselves when they are wrong
//	spec.go    the flags of run and create, and the box.Spec they make
//	follow.go  a command in a box joined to this terminal: input, output, signals
//	term.go    raw mode, window size, interruptible reads, detach keys
//	agent_*.go  'hutch agent': the place, the conversation, what is shown, the copy
//	print.go   tables, JSON, times and sizes, and making hostile text harmless
//
// Packages below have what needs no terminal: hosttar and changes for folders,
// mcpserve for 'hutch mcp'.
//
// # Habits
//
// Commands and flags are docker's where docker has them. An error is one line
// on standard error, "hutch: what: why; what to do". Commands that take several
// boxes go on after a failure, print a line for each and fail at the end.
//
// # Exit status
//
//	0    success (ExitOK)
//	1    the command failed (ExitFailure)
//	2    wrong usage: an unknown command, a bad flag or argument (ExitUsage)
//	124  a --timeout passed (ExitTimeout)
//	125  run, create and exec: Hutch itself failed (ExitHutch)
//	126  run and exec: the command cannot be invoked (ExitCannotInvoke)
//	127  run and exec: the command was not found (ExitNotFound)
//	141  nobody reads standard output any more (ExitPipe)
//	128+N  Hutch was ended by signal N
//
// Otherwise run, exec, start -a and attach end with the status of the command
// in the box, which is 128+N when signal N ended it.
package cli
