//go:build linux

package agent

import (
	"crypto/sha256"
	"fmt"

	"github.com/hutch-sandbox/hutch/internal/guest/boot"
)

// identity is what tells this machine from copies of it. It is replaced as a
// whole.
type identity struct {
	open   bool // a token was given
	token  [sha256.Size]byte
	bootID string
}

func newIdentity(token, bootID string) *identity {
	return &identity{open: token != "", token: sha256.Sum256([]byte(token)), bootID: bootID}
}

// Adopt gives the agent of a copied machine an identity of its own: the token,
// boot id and host name of conf. Whoever knows only the original's token is
// refused from then on, also on connections that are open. The rest of conf
// stays as it was when the machine booted: its commands run already.
func (a *Agent) Adopt(conf boot.Config) error {
	if err := setHostname(conf.Hostname); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	a.identity.Store(newIdentity(conf.Token, conf.BootID))
	return nil
}
