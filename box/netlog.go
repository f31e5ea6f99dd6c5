package box

import "time"

// NetKind says what a NetRecord is about.
type NetKind string

// The kinds of records.
const (
	NetDNS     NetKind = "dns"     // a name was asked for
	NetFlow    NetKind = "flow"    // a connection was allowed or refused
	NetEnd     NetKind = "end"     // a connection ended; bytes are counted
	NetHTTP    NetKind = "http"    // a request in an HTTP connection was refused, or got a secret
	NetPort    NetKind = "port"    // a connection to a published port
	NetChanged NetKind = "network" // the network was changed
	NetLost    NetKind = "lost"    // records were left out, since there were too many a second
)

// NetRecord is one line of a box's network log.
type NetRecord struct {
	Time    time.Time `json:"time"`
	Kind    NetKind   `json:"kind"`
	Allowed bool      `json:"allowed"`
	Proto   string    `json:"proto,omitempty"` // tcp, udp; of a question its type, such as AAAA
	Name    string    `json:"name,omitempty"`  // that was asked for, or that a connection went by
	Addr    string    `json:"addr,omitempty"`  // that the box connected to, or the answers
	Port    int       `json:"port,omitempty"`
	Rule    string    `json:"rule,omitempty"` // that decided; empty: nothing opens it
	Reason  string    `json:"reason,omitempty"`

	Sent     int64         `json:"sent,omitempty"`     // bytes from the box
	Received int64         `json:"received,omitempty"` // bytes to the box
	Duration time.Duration `json:"duration,omitempty"` // nanoseconds
	Count    int64         `json:"count,omitempty"`    // of a NetLost: how many
}
