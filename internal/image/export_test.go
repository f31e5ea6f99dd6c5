package image

import "time"

// Hurry makes s wait for milliseconds where it would wait for seconds.
func (s *Store) Hurry() {
	s.patience = patience{tries: 5, first: time.Millisecond, most: 10 * time.Millisecond, stall: 300 * time.Millisecond}
}

// Normalize returns what the store makes of a name.
func Normalize(s string) (string, error) {
	r, err := splitReference(s)
	return r.String(), err
}
