// Package api holds the protocol hutch.v1: the proto files and, in hutchv1,
// the code generated from them (`make proto`). It has no behaviour.
//
// The same services are spoken on every hop: the guest agent in a box serves
// Process, Files, Tunnel and System; the box's keeper adds Box and passes the
// rest through.
package api
