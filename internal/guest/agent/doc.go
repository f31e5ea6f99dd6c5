// Package agent is the guest agent: the program that is PID 1 in every box and
// serves the protocol hutch.v1 (Process, Files, Tunnel and System) to the
// box's keeper.
//
// # How it works
//
// New makes an Agent; its Handler answers requests that carry the token of
// this boot, and Serve runs an HTTP/2 (cleartext) and HTTP/1.1 server that
// bounds what strangers in the box can use up. Main is what cmd/hutch-guest
// calls: it reads the boot configuration, prepares the box when it is PID 1,
// and serves.
//
// A command that the agent started is an exec (exec.go). A supervisor
// goroutine owns it: it starts the process, waits for it, applies the timeout
// and kills. Two pumps carry its output into a log (log.go), from which any
// number of streams read. What the process forks is found again through a
// group (group*.go): a control group where the kernel has them, else a
// reading of /proc. As PID 1 the agent reaps every orphan; one goroutine waits
// for all children and hands out their statuses (reap.go).
//
// The Files service works with plain system calls on the agent's own view of
// the file system, which is that of the commands.
//
// # Locks
//
// The order is: table, exec, outputLog, reaper. No lock is held while
// something waits for a process, a file or a peer, with one exception that
// reap.go explains.
//
// Only Linux has this package's code.
package agent
