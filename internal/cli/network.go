package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hutch-sandbox/hutch/box"
)

// networkFlags say what a box may reach.
type networkFlags struct {
	preset      string
	allow, deny []string
}

func (f *networkFlags) register(fs *pflag.FlagSet) {
	parsed(fs, &f.preset, "net", "", "preset", "off (default), internet (public only) or all (local networks too)", oneOf("off", "internet", "all"))
	repeated(fs, &f.allow, "allow", "", "rule", "open a name, *.name, address or range [:ports][/tcp|/udp]", parseRule)
	repeated(fs, &f.deny, "deny", "", "rule", "close something that --net or --allow opened", parseRule)
}

func (f *networkFlags) network() box.Network {
	return box.Network{Preset: box.NetPreset(f.preset), Allow: f.allow, Deny: f.deny}
}

func parseRule(s string) (string, error) {
	r, err := box.ParseRule(s)
	if err != nil {
		return "", err
	}
	return r.String(), nil
}

// secretFlag is a --secret: which one, and where its value comes from.
type secretFlag struct {
	secret box.Secret
	source string // "env:NAME", "file:PATH" or "-"
}

// parseSecret reads NAME[=SOURCE]@HOST[,HOST...][@HEADER[,HEADER...]].
func parseSecret(s string) (secretFlag, error) {
	parts := strings.Split(s, "@")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return secretFlag{}, errors.New("write NAME@HOST for the value of the variable NAME, or NAME=env:VAR@HOST, NAME=file:PATH@HOST, NAME=-@HOST for standard input")
	}
	name, source, given := strings.Cut(parts[0], "=")
	f := secretFlag{secret: box.Secret{Name: name, Hosts: strings.Split(parts[1], ",")}, source: source}
	switch {
	case !given:
		f.source = "env:" + name
	case source == "-", strings.HasPrefix(source, "env:") && len(source) > 4, strings.HasPrefix(source, "file:") && len(source) > 5:
	default:
		return secretFlag{}, errors.New("the value comes from env:VAR, file:PATH or - (standard input), never from the command line, which others can see")
	}
	if len(parts) == 3 {
		f.secret.Headers = strings.Split(parts[2], ",")
	}
	return f, nil
}

// parseValue reads NAME[=SOURCE], for a secret that a box has.
func parseValue(s string) (secretFlag, error) {
	f, err := parseSecret(s + "@host")
	if err != nil || strings.Contains(s, "@") {
		return secretFlag{}, errors.New("write NAME, NAME=env:VAR, NAME=file:PATH or NAME=- for standard input")
	}
	return f, nil
}

// readValues gets the values, by name.
func (e *env) readValues(flags []secretFlag) (map[string]string, error) {
	secrets, err := e.readSecrets(flags)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, s := range secrets {
		values[s.Name] = s.Value
	}
	return values, nil
}

// readSecrets gets the values.
func (e *env) readSecrets(flags []secretFlag) ([]box.Secret, error) {
	var out []box.Secret
	for _, f := range flags {
		value, err := e.readValue(f.source)
		if err != nil {
			return nil, usagef("--secret: %s: %v", f.secret.Name, err)
		}
		f.secret.Value = value
		if err := f.secret.ValidateValue(); err != nil {
			return nil, &usageError{err.Error()}
		}
		out = append(out, f.secret)
	}
	if n := len(slices.DeleteFunc(slices.Clone(flags), func(f secretFlag) bool { return f.source != "-" })); n > 1 {
		return nil, usagef("--secret: standard input has one value, not %d; use files", n)
	}
	return out, nil
}

const maxValue = 64 << 10

func (e *env) readValue(source string) (string, error) {
	if name, ok := strings.CutPrefix(source, "env:"); ok {
		value, ok := e.getenv(name)
		if !ok {
			return "", fmt.Errorf("the variable %s is not set; set it, or name a file with file:PATH", name)
		}
		return value, nil
	}
	r := e.Stdin
	if name, ok := strings.CutPrefix(source, "file:"); ok {
		file, err := os.Open(e.hostPath(name))
		if err != nil {
			return "", fmt.Errorf("%w; name a file that can be read", err)
		}
		defer file.Close()
		r = file
	}
	data, err := io.ReadAll(io.LimitReader(r, maxValue))
	if err != nil {
		return "", fmt.Errorf("%w; name something that can be read", err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}
