// Package boxfake is a box.Driver that keeps everything in memory: for unit
// tests of what stands on package box, without root, network or processes.
//
// It works rather than pretends. A box has a file system with Unix semantics
// (links, modes, open handles of removed files), runs shell scripts with
// mvdan.cc/sh and a few dozen programs that are Go functions, keeps process and
// input/output semantics (signals, traps, timeouts, back-pressure, replay for
// those who attach), and has the whole life cycle: waking on use, leases,
// main command, restart policy, logs, events. It passes package box/boxtest.
//
// What it does not do: it enforces no permissions and no limits, has one user
// database, and a terminal is little more than a flag.
//
// # Seams for tests
//
// Config.Fail injects errors by operation, Driver.Crash makes a box die,
// Driver.Listen puts a server into a box, Config.Registry is what images can be
// pulled, Driver.Another is a second program on the same boxes.
//
// # Locks
//
// The order is: host, exec, outputLog, memFS. None is held while something waits
// for a command.
package boxfake
