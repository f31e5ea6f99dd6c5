package box

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// Secret is a value that a box uses without ever having it. In the box the
// variable Name holds a placeholder; the box's gateway puts the value in its
// place, in the named headers of HTTPS requests to the named hosts, and takes
// it out of the responses.
//
// The value is kept in memory only: of the program that creates the box, and
// of the box's keeper. It is in no file, log or JSON document. A box that was
// stopped gets it again from a client that has it, see Box.SetSecrets.
type Secret struct {
	// Name of the environment variable in the box.
	Name string `json:"name"`
	// Value is what is kept from the box: at least 8 bytes of printable ASCII
	// without spaces, as headers take it.
	Value string `json:"-"`
	// Hosts are the names, or "*.name" for all below one, of the servers that
	// may get the value. The network must open their port 443.
	Hosts []string `json:"hosts"`
	// Headers in which the placeholder is replaced. Empty: Authorization
	// (also inside of Basic credentials), X-Api-Key and Api-Key.
	Headers []string `json:"headers,omitempty"`
}

// DefaultSecretHeaders are the headers of a Secret that names none.
func DefaultSecretHeaders() []string { return []string{"Authorization", "X-Api-Key", "Api-Key"} }

// String names the secret and leaves its value out, whatever the verb.
func (s Secret) String() string {
	return fmt.Sprintf("secret %s for %s", s.Name, strings.Join(s.Hosts, ", "))
}

// GoString is String, so that no verb of package fmt shows the value.
func (s Secret) GoString() string { return s.String() }

// Format is String for every verb of package fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue is String, for package log/slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

const (
	maxSecrets = 100
	minSecret  = 8
	maxSecret  = 16 << 10
)

// ValidateValue reports whether the value can be one. Its error does not
// contain the value.
func (s Secret) ValidateValue() error {
	switch {
	case len(s.Value) < minSecret:
		return fieldError("secrets", "use a longer value", "the value of %s has fewer than %d bytes and would be found everywhere", clip(s.Name), minSecret)
	case len(s.Value) > maxSecret:
		return fieldError("secrets", "use a shorter value", "the value of %s has more than %d bytes", clip(s.Name), maxSecret)
	}
	for i := range len(s.Value) {
		if c := s.Value[i]; c <= ' ' || c >= 0x7f {
			return fieldError("secrets", "remove white space at its ends, such as a file's last newline", "the value of %s has a byte that no header value should", clip(s.Name))
		}
	}
	return nil
}

func validateSecrets(s Spec) error {
	if len(s.Secrets) > maxSecrets {
		return fieldError("secrets", fmt.Sprintf("use at most %d", maxSecrets), "%d secrets are too many", len(s.Secrets))
	}
	if len(s.Secrets) == 0 {
		return nil
	}
	policy, err := s.Network.Compile()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, sec := range s.Secrets {
		field := fmt.Sprintf("secrets[%d]", i)
		switch {
		case !variableName(sec.Name):
			return fieldError(field+".name", "use letters, digits and '_', as for a variable", "%q is not a variable's name", clip(sec.Name))
		case seen[sec.Name]:
			return fieldError(field+".name", "give every secret a name of its own", "%s is used twice", sec.Name)
		case len(sec.Hosts) == 0:
			return fieldError(field+".hosts", "name the servers that may get the value", "no hosts")
		case len(sec.Hosts) > 100:
			return fieldError(field+".hosts", "use wildcards", "%d hosts are too many", len(sec.Hosts))
		case len(sec.Headers) > 20:
			return fieldError(field+".headers", "use at most 20", "%d headers are too many", len(sec.Headers))
		}
		seen[sec.Name] = true
		for _, kv := range s.Env {
			if strings.HasPrefix(kv, sec.Name+"=") {
				return fieldError(field+".name", "remove the variable", "env sets %s too", sec.Name)
			}
		}
		if sec.Value != "" {
			if err := sec.ValidateValue(); err != nil {
				return err
			}
		}
		for n, h := range sec.Hosts {
			r, err := ParseRule(h)
			hostField := fmt.Sprintf("%s.hosts[%d]", field, n)
			if err != nil || r.name == "" || len(r.ports) > 0 || r.proto != "" {
				return fieldError(hostField, "use a name or *.name without port", "%q is not the name of a server", clip(h))
			}
			if !policy.opens(r) {
				return fieldError(hostField, "add "+h+":443 to network.allow", "the network does not open %s", clip(h))
			}
		}
		for n, h := range sec.Headers {
			if !headerName(h) {
				return fieldError(fmt.Sprintf("%s.headers[%d]", field, n), "use a header such as X-Api-Key", "%q is not a header that can carry a secret", clip(h))
			}
		}
	}
	return nil
}

// opens reports whether some rule or the preset opens HTTPS to what host is
// about, or to a part of it.
func (p *Policy) opens(host Rule) bool {
	if p.preset == NetInternet || p.preset == NetAll {
		return true
	}
	return slices.ContainsFunc(p.allow, func(r Rule) bool {
		if r.name == "" || !r.matchPort(443, "tcp") {
			return false
		}
		example := host.name
		if host.wildcard {
			example = "x." + host.name
		}
		return r.matchName(example) || host.matchName(r.name) || host.wildcard && r.wildcard && strings.HasSuffix("."+r.name, "."+host.name)
	})
}

func variableName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9' || i == 0) {
			return false
		}
	}
	return s != "" && len(s) <= 256
}

// headerName accepts names of header fields that go from end to end.
func headerName(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c != '-' && c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	switch strings.ToLower(s) {
	case "host", "connection", "content-length", "content-type", "transfer-encoding", "te", "trailer", "upgrade", "accept-encoding", "expect", "keep-alive", "proxy-connection":
		return false
	}
	return true
}

// MatchHost reports whether name is one of the secret's hosts. The name is as
// NormalName returns it.
func (s Secret) MatchHost(name string) bool {
	return slices.ContainsFunc(s.Hosts, func(h string) bool {
		r, err := ParseRule(h)
		return err == nil && r.matchName(name)
	})
}
