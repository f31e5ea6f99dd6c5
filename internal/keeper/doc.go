// Package keeper is the process that owns one running box.
//
// A keeper is the hutch program in another mode, started by whoever first
// needs the box (box/local). It holds the box's life lock, boots the engine,
// and serves hutch.v1 on keeper.sock in the box's folder: the Box service
// itself, everything else passed on to the guest agent. It ends when the box
// does. Nothing that a client does, its death included, can harm a box; the
// death of the keeper ends the box's processes, since they live in the
// keeper's process namespace.
//
// One keeper's life, in the order of its files:
//
//	main.go     the process: locks, states, the order of everything
//	boot.go     from the record on disk to the engine's configuration
//	network.go  the box's gateway, and the calls that are about it
//	harden.go   what the keeper gives up once the box is up
//	serve.go    the socket, leases, the Box service
//	channel.go  the connections to the guest agent
//	proxy.go    passing calls on to the guest agent
//	command.go  the main command: logs, exit status, restarts
//
// The box stops when its main command ends and is not restarted; when the last
// lease is given up and the box is not detached; when somebody asks; or when
// the engine ends. Whatever the reason, the state on disk is written before
// anybody is told.
package keeper
