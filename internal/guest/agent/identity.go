//go:build linux

package agent

import (
	"crypto/sha256"
	"fmt"

	"github.com/hutch-sandbox/hutch/internal/guest/boot"
)

// identity is what tells this machine from copies of it, and what belongs to
// its owner alone. It is replaced as a whole.
type identity struct {
	open   bool // a token was given
	token  [sha256.Size]byte
	bootID string
	env    []string // what every command starts from
}

func newIdentity(token, bootID string, env [][]byte) (*identity, error) {
	base, err := checkStrings("env", env, true)
	return &identity{open: token != "", token: sha256.Sum256([]byte(token)), bootID: bootID, env: base}, err
}

// Adopt gives the agent of a copied machine an identity of its own: the token,
// boot id, host name, environment and authority of conf. Whoever knows only the
// original's token is refused from then on, also on connections that are open.
// Commands that run go on as they are, and the rest of conf stays as it was
// when the machine booted.
func (a *Agent) Adopt(conf boot.Config) error {
	if err := setHostname(conf.Hostname); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	env, err := trust(conf.CA, conf.Env)
	if err != nil {
		a.logf("trust the box's authority: %v", err)
	}
	id, err := newIdentity(conf.Token, conf.BootID, env)
	if err != nil {
		return err
	}
	a.identity.Store(id)
	return nil
}
