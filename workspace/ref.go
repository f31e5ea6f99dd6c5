package workspace

import (
	"fmt"
	"strings"
)

// Ref names a place so that it can be found again: it is stored in an agent's
// history, for example. It holds no credentials, and only the provider
// understands the ID. The zero Ref names nothing.
type Ref struct {
	Provider string `json:"provider"`
	ID       string `json:"id"`
}

// IsZero reports whether r names nothing.
func (r Ref) IsZero() bool { return r == Ref{} }

// String returns "provider:id", for people and logs.
func (r Ref) String() string { return r.Provider + ":" + r.ID }

// Validate reports whether r could be anybody's, as an error that is
// ErrInvalid. Refs come from storage and from strangers.
func (r Ref) Validate() error {
	bad := func(s string) bool { return strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) }
	switch {
	case r.Provider == "" || r.ID == "":
		return &Error{Kind: ErrInvalid, Op: "ref", Err: fmt.Errorf("%q names no place", clip(r.String())), Hint: "give provider and id"}
	case len(r.Provider) > 128 || len(r.ID) > 4096 || bad(r.Provider) || bad(r.ID):
		return &Error{Kind: ErrInvalid, Op: "ref", Err: fmt.Errorf("%q is too long or has control characters", clip(r.String()))}
	}
	return nil
}

// clip keeps hostile values from filling an error message.
func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
