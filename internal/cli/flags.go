package cli

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/box"
)

// The flag values here say, when they are wrong, what would be right: pflag
// prefixes their errors with the flag's name.

// value is a flag whose text is parsed into a T.
type value[T any] struct {
	target *T
	text   string // as given; empty before that
	name   string // of the kind of value, for help
	parse  func(string) (T, error)
}

func (v *value[T]) String() string { return v.text }
func (v *value[T]) Type() string   { return v.name }
func (v *value[T]) Set(s string) error {
	t, err := v.parse(s)
	if err != nil {
		return err
	}
	*v.target, v.text = t, s
	return nil
}

func parsed[T any](fs *pflag.FlagSet, target *T, long, short, name, usage string, parse func(string) (T, error)) {
	fs.VarP(&value[T]{target: target, name: name, parse: parse}, long, short, usage)
}

// list is a flag that may be given again, each time adding one value.
type list[T any] struct {
	target *[]T
	name   string
	parse  func(string) (T, error)
}

func (v *list[T]) String() string { return "" }
func (v *list[T]) Type() string   { return v.name }
func (v *list[T]) Set(s string) error {
	t, err := v.parse(s)
	if err != nil {
		return err
	}
	*v.target = append(*v.target, t)
	return nil
}

func repeated[T any](fs *pflag.FlagSet, target *[]T, long, short, name, usage string, parse func(string) (T, error)) {
	fs.VarP(&list[T]{target: target, name: name, parse: parse}, long, short, usage)
}

func anyText(s string) (string, error) { return s, nil }

func someText(s string) (string, error) {
	if s == "" {
		return "", errors.New("it is empty; give a value or leave the flag out")
	}
	return s, nil
}

// oneOf accepts exactly the given words.
func oneOf(words ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if slices.Contains(words, s) {
			return s, nil
		}
		return "", fmt.Errorf("use one of %s", strings.Join(words, ", "))
	}
}

// parseSize reads docker's sizes: a number and b, k, m, g, t or p, binary.
func parseSize(s string) (int64, error) {
	n, err := units.RAMInBytes(s)
	if err != nil || n <= 0 || n > 1<<60 {
		return 0, errors.New("not a size; write a number and b, k, m, g or t, for example 512m")
	}
	return n, nil
}

func parseCPUs(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || n <= 0 || n > 4096 {
		return 0, errors.New("not a number of CPUs; write for example 0.5 or 2")
	}
	return n, nil
}

// parseCount reads a whole number of at least low.
func parseCount(low int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > math.MaxInt32 {
			return 0, fmt.Errorf("write a whole number of at least %d", low)
		}
		return n, nil
	}
}

// parseTail reads "all" or a number of lines; all is -1.
func parseTail(s string) (int, error) {
	if s == "all" {
		return -1, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, errors.New(`write a number of lines or "all"`)
	}
	return n, nil
}

// parseDuration reads "10s", "1m30s" or a bare number of seconds.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if secs, nerr := strconv.ParseFloat(s, 64); nerr == nil && secs <= 1e9 && secs >= 0 {
		d, err = time.Duration(secs*float64(time.Second)), nil
	}
	if err != nil || d < 0 {
		return 0, errors.New("not a duration; write seconds or for example 1m30s")
	}
	return d, nil
}

func parsePositiveDuration(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err == nil && d <= 0 {
		err = errors.New("must be more than zero; write seconds or for example 1m30s")
	}
	return d, err
}

// parseSignal reads a signal by number or by name, with or without "SIG".
func parseSignal(s string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > 64 {
			return 0, errors.New("no such signal; use 1 to 64 or a name such as TERM")
		}
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return n, nil
	}
	return 0, errors.New("no such signal; use a name such as TERM or HUP, or a number")
}

// parseKeyValue reads "key=value" or "key".
func parseKeyValue(s string) ([2]string, error) {
	k, v, _ := strings.Cut(s, "=")
	if k == "" {
		return [2]string{}, errors.New("the key is empty; write key=value")
	}
	return [2]string{k, v}, nil
}

// parseRestart reads docker's restart policies.
func parseRestart(s string) (box.RestartPolicy, error) {
	bad := errors.New("use no, on-failure, on-failure:N or always")
	when, count, counted := strings.Cut(s, ":")
	p := box.RestartPolicy{When: box.RestartWhen(when)}
	switch when {
	case "no":
		p.When = box.RestartNo
	case string(box.RestartOnFailure):
		if counted {
			n, err := strconv.Atoi(count)
			if err != nil || n < 1 {
				return p, errors.New("the number of restarts must be at least 1; write on-failure:N, or on-failure for no bound")
			}
			p.Max, counted = n, false
		}
	case string(box.RestartAlways):
	default:
		return p, bad
	}
	if counted {
		return p, bad
	}
	return p, nil
}

// parseVolume reads "source:target[:ro|rw]". A source with a slash, or one
// that starts with a dot, is a host path; others are names of volumes. The
// host path is as given.
func parseVolume(s string) (box.Volume, error) {
	parts := strings.Split(s, ":")
	bad := errors.New("write host-path:box-path[:ro] or volume-name:box-path[:ro]")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return box.Volume{}, bad
	}
	v := box.Volume{Target: parts[1]}
	if strings.Contains(parts[0], "/") || strings.HasPrefix(parts[0], ".") {
		v.Host = parts[0]
	} else {
		v.Name = parts[0]
	}
	if !strings.HasPrefix(v.Target, "/") {
		return box.Volume{}, fmt.Errorf("the box's path %q is not absolute; start it with /", v.Target)
	}
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
			v.ReadOnly = true
		case "rw":
		default:
			return box.Volume{}, fmt.Errorf("unknown option %q; use ro or rw", parts[2])
		}
	}
	return v, nil
}

// parseKeys reads the detach keys.
func parseKeys(s string) (string, error) {
	_, err := parseDetachKeys(s)
	return s, err
}

// parseWords reads a comma-separated list.
func parseWords(s string) ([]string, error) {
	words, err := csv.NewReader(strings.NewReader(s)).Read()
	if err != nil || slices.Contains(words, "") {
		return nil, errors.New("write names separated by commas, for example python3,git")
	}
	return words, nil
}

// flagError makes pflag's errors the program's own: which flag, what is wrong,
// what to do.
func flagError(path string, err error) error {
	var (
		bad     *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
		unknown *pflag.NotExistError
	)
	switch {
	case errors.As(err, &bad):
		cause := bad.Unwrap()
		if cause != nil && strings.Contains(cause.Error(), "strconv.ParseBool") {
			cause = errors.New("use true or false")
		}
		f := bad.GetFlag()
		return usagef("--%s: invalid value %q: %v", f.Name, clip(bad.GetValue()), cause)
	case errors.As(err, &missing):
		return usagef("--%s: needs a value; see '%s --help'", missing.GetFlag().Name, path)
	case errors.As(err, &unknown):
		name := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			name = "-" + unknown.GetSpecifiedName()
		}
		return usagef("%s: unknown flag; see '%s --help'", name, path)
	}
	return usagef("%v; see '%s --help'", err, path)
}

// clip shortens what an error quotes.
func clip(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}
