// Package boot is the boot configuration of a box's guest agent.
//
// Whoever boots a box (an engine) writes one Config as JSON to the agent's
// standard input and closes it. The agent reads to the end, puts /dev/null in
// the place of its standard input, prepares the box and serves. So nothing of
// the configuration, in particular not the token, is ever in the box's file
// system, in an argument or in an environment.
//
// The package imports nothing of Hutch and is shared by both sides.
package boot

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Protocol is the version of the protocol hutch.v1 that this source speaks.
// The agent refuses to boot with another one.
const Protocol = 1

// TokenHeader is the request header that carries Config.Token.
const TokenHeader = "Hutch-Token"

// maxSize bounds what Read accepts: environments may be large, but not
// without limit.
const maxSize = 16 << 20

// Config is what the agent must know to bring up a box.
type Config struct {
	// Protocol is the protocol version of the side that boots.
	Protocol int `json:"protocol"`
	// BootID is new on every boot; System.Hello repeats it.
	BootID string `json:"bootID"`
	// Token must be in the Hutch-Token header of every request.
	Token string `json:"token"`
	// Listen is "tcp:HOST:PORT" or "unix:PATH".
	Listen string `json:"listen"`
	// Hostname of the box; empty: left as it is.
	Hostname string `json:"hostname,omitempty"`
	// Env is the base environment of every command, "KEY=value": the image's,
	// then the spec's. Bytes, since Linux does not promise UTF-8.
	Env [][]byte `json:"env,omitempty"`
	// Dir is the working directory of the box; empty: "/". It is created when
	// it is missing.
	Dir []byte `json:"dir,omitempty"`
	// User runs commands and owns what the Files service creates: "user",
	// "uid", "user:group" or "uid:gid"; empty: root.
	User string `json:"user,omitempty"`
	// Pids limits the processes and threads of all commands together; zero: no
	// limit.
	Pids int `json:"pids,omitempty"`
	// Nameserver is the address that /etc/resolv.conf names; empty: the file is
	// left as it is.
	Nameserver string `json:"nameserver,omitempty"`
	// CA is a certificate in PEM that the box's programs are to trust beside
	// those that the image brings; empty: none.
	CA []byte `json:"ca,omitempty"`
	// NoCgroups makes the agent follow commands through /proc alone. It then
	// can lose a process that daemonises, and Pids has no effect.
	NoCgroups bool `json:"noCgroups,omitempty"`
}

// nobody is the host name of a machine that is no box's yet.
const nobody = "hutch"

// Nobody returns the configuration of a machine that is no box's yet, and can
// become any that differs from c in what an agent adopts: token, boot id, host
// name, environment and authority. Its token is new, and nobody needs to know
// it. The key is the same for all such boxes.
func (c Config) Nobody() (n Config, key string) {
	c.Token, c.BootID, c.Hostname, c.Env, c.CA = "", "", nobody, nil, nil
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // not reached: it is strings, bytes and numbers
	}
	sum := sha256.Sum256(data)
	c.Token = rand.Text()
	return c, hex.EncodeToString(sum[:])
}

// Write writes c as Read expects it. The caller closes w's pipe afterwards.
func Write(w io.Writer, c Config) error {
	return json.NewEncoder(w).Encode(c)
}

// Read reads one Config up to the end of r and checks it.
func Read(r io.Reader) (Config, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return Config{}, fmt.Errorf("boot configuration: %w", err)
	}
	if len(data) > maxSize {
		return Config{}, fmt.Errorf("boot configuration is larger than %d bytes", maxSize)
	}
	var c Config
	if err := json.Unmarshal(data, &c); err != nil {
		return Config{}, fmt.Errorf("boot configuration: %w", err)
	}
	return c, c.check()
}

func (c Config) check() error {
	if c.Protocol != Protocol {
		return fmt.Errorf("boot configuration: protocol %d, this agent speaks %d", c.Protocol, Protocol)
	}
	if len(c.Token) < 16 {
		return errors.New("boot configuration: token: at least 16 characters are needed")
	}
	if _, _, err := c.Address(); err != nil {
		return err
	}
	if c.Pids < 0 {
		return fmt.Errorf("boot configuration: pids %d is negative", c.Pids)
	}
	return nil
}

// Address splits Listen into the arguments of net.Listen and net.Dial.
func (c Config) Address() (network, address string, err error) {
	network, address, ok := strings.Cut(c.Listen, ":")
	if !ok || address == "" || network != "tcp" && network != "unix" {
		return "", "", fmt.Errorf("boot configuration: listen %q: want tcp:HOST:PORT or unix:PATH", c.Listen)
	}
	return network, address, nil
}
