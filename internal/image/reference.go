package image

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hutch-sandbox/hutch/box"
)

// reference names an image: [registry/]repository[:tag][@digest]. Without a
// registry it is either the name of an image made on this machine or one to
// be looked for in the registries of the search order.
type reference struct {
	registry string // "docker.io", "localhost:5000"; "" is unqualified
	repo     string // "library/python", "dev"
	tag      string // "" only beside a digest
	digest   string // "sha256:…" or ""
}

const (
	dockerHub  = "docker.io"
	defaultTag = "latest"
	hostLabel  = `[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?`
)

var (
	repoPart  = lazy(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`)
	tagForm   = lazy(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	hostForm  = lazy(`^(?:` + hostLabel + `(?:\.` + hostLabel + `)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?$`)
	digForm   = lazy(`^sha256:[0-9a-f]{64}$`)
	shortForm = lazy(`^(?:sha256:)?[0-9a-f]{4,64}$`)
)

// parseReference reads what a user typed, a manifest recorded or an archive
// holds. Its errors are of kind Invalid and name op.
func parseReference(op, s string) (reference, error) {
	r, err := splitReference(s)
	if err != nil {
		return reference{}, &box.Error{Kind: box.Invalid, Op: op, Object: clip(s), Err: err,
			Hint: "an image is named like python:3.12-slim, ghcr.io/org/app:v1 or ghcr.io/org/app@sha256:…"}
	}
	return r, nil
}

func splitReference(s string) (reference, error) {
	var r reference
	if s == "" {
		return r, errors.New("an image name is needed")
	}
	if len(s) > 512 {
		return r, errors.New("the image name is longer than 512 bytes")
	}
	rest, digest, ok := strings.Cut(s, "@")
	if ok {
		if !digForm().MatchString(digest) {
			return r, errors.New("what follows @ must be sha256: and 64 hexadecimal digits")
		}
		r.digest = digest
	}
	if host, path, ok := strings.Cut(rest, "/"); ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		if !hostForm().MatchString(host) {
			return r, fmt.Errorf("%q is not the name of a registry", host)
		}
		r.registry, rest = strings.ToLower(host), path
		if r.registry == "index.docker.io" || r.registry == "registry-1.docker.io" {
			r.registry = dockerHub
		}
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 {
		rest, r.tag = rest[:i], rest[i+1:]
		if !tagForm().MatchString(r.tag) {
			return r, fmt.Errorf("the tag %q must be letters, digits, _ . and -, at most 128, and not start with . or -", clip(r.tag))
		}
	}
	for part := range strings.SplitSeq(rest, "/") {
		if !repoPart().MatchString(part) {
			if repoPart().MatchString(strings.ToLower(part)) {
				return r, errors.New("the name must be in lower case")
			}
			return r, fmt.Errorf("%q must be lower-case letters and digits, with single . _ or - between them", clip(part))
		}
	}
	r.repo = rest
	if r.tag == "" && r.digest == "" {
		r.tag = defaultTag
	}
	return r.normal(), nil
}

// normal writes Docker Hub's one-part names out.
func (r reference) normal() reference {
	if r.registry == dockerHub && !strings.Contains(r.repo, "/") {
		r.repo = "library/" + r.repo
	}
	return r
}

// in returns r as a name in registry.
func (r reference) in(registry string) reference {
	r.registry = registry
	return r.normal()
}

// String returns the normalised name.
func (r reference) String() string {
	s := r.repo
	if r.registry != "" {
		s = r.registry + "/" + s
	}
	if r.tag != "" {
		s += ":" + r.tag
	}
	if r.digest != "" {
		s += "@" + r.digest
	}
	return s
}

// name returns the name under which the store files r: a digest says more than
// the tag beside it.
func (r reference) name() string {
	if r.digest != "" {
		r.tag = ""
	}
	return r.String()
}

// clip keeps a wrong value from flooding the message about it.
func clip(s string) string {
	if len(s) > 120 {
		s = s[:120] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
