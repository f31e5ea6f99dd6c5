// Package hutchv1connect has the services of the protocol hutch.v1 as Connect
// handlers and clients, generated from api/proto by "make proto". Package
// hutchv1 has their messages.
package hutchv1connect
