//go:build linux

// Command hutch-guest is the program that runs first in every box. It takes
// its configuration from standard input and serves the guest protocol; see
// package internal/guest/agent. In a virtual machine it is what Linux starts
// first, and makes the machine ready before; see package internal/guest/vminit.
package main

import (
	"os"
	"runtime/debug"

	"github.com/hutch-sandbox/hutch/internal/guest/agent"
	"github.com/hutch-sandbox/hutch/internal/guest/vminit"
)

// version is set by the build (-ldflags '-X main.version=…').
var version string

func main() {
	if version == "" {
		version = "devel"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
			version = info.Main.Version
		}
	}
	if vminit.IsModprobe(os.Args) {
		os.Exit(vminit.Modprobe(os.Args[1:]))
	}
	if vminit.Here() {
		vminit.Main(version)
	}
	os.Exit(agent.Main(version))
}
