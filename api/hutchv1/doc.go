// Package hutchv1 has the messages of the protocol hutch.v1, generated from
// api/proto by "make proto". What each message and field means is said there.
//
// Programs that use boxes do not need it: package box is their interface. It is
// for who implements an end of the protocol: the guest agent, the keeper, a
// server, and their clients.
package hutchv1
