package box

import (
	"errors"
	"fmt"
	"math"
	"path"
	"regexp"
	"sort"
	"strings"
	"sync"
	"time"
)

var (
	namePattern     = lazy(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	hostnamePattern = lazy(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$`)
	platformPattern = lazy(`^[a-z0-9]+/[a-z0-9_]+(/[a-z0-9.]+)?$`)
)

const (
	minMemory = 16 << 20
	minDisk   = 16 << 20 // the least that holds a file system with a journal
	minCPUs   = 0.01
	// maxString is what Linux takes as one argument or environment entry
	// (MAX_ARG_STRLEN), without the terminating NUL.
	maxString      = 128<<10 - 1
	maxStopTimeout = 24 * time.Hour
)

// Validate reports the first thing in the spec that is wrong by itself or
// that contradicts another field, as an *Error of kind Invalid whose Object is
// the field and whose Hint is the remedy. It does not look at the host: whether
// the image, a host folder or an engine exists shows in Runtime.Create.
func (s Spec) Validate() error {
	for _, check := range []func(Spec) error{
		validateIdentity, validateSource, validateResources, validateEnvironment,
		validateMain, validateVolumes, validateNetwork, validatePorts, validateLinks, validateSecrets, validateEngine, validateLife,
	} {
		if err := check(s); err != nil {
			return err
		}
	}
	return nil
}

// HasMain reports whether the box is to have a main command.
func (s Spec) HasMain() bool { return s.Main || len(s.Entrypoint) > 0 || len(s.Cmd) > 0 }

func fieldError(field, hint, format string, args ...any) error {
	return &Error{Kind: Invalid, Op: "spec", Object: field, Err: fmt.Errorf(format, args...), Hint: hint}
}

// ValidateName reports whether name can be the name of a box: letters, digits,
// '_', '.' and '-', at most 63, starting with a letter or digit. The error is
// an *Error of kind Invalid.
func ValidateName(name string) error {
	if namePattern().MatchString(name) {
		return nil
	}
	return fieldError("name", "use 1 to 63 letters, digits, '_', '.' or '-', starting with a letter or digit", "%q is not a box name", clip(name))
}

func validateIdentity(s Spec) error {
	if s.Name != "" {
		if err := ValidateName(s.Name); err != nil {
			return err
		}
	}
	keys := make([]string, 0, len(s.Labels))
	for k := range s.Labels {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		if k == "" || len(k) > 128 || strings.ContainsFunc(k, func(r rune) bool { return r <= ' ' || r == '=' || r == ',' || r == 0x7f }) {
			return fieldError("labels", "use keys of 1 to 128 characters without spaces, '=' and ','", "%q is not a label key", clip(k))
		}
		if v := s.Labels[k]; len(v) > 4096 || strings.IndexByte(v, 0) >= 0 {
			return fieldError("labels", "use values of at most 4096 bytes without NUL", "the value of %q is too long or has a NUL byte", k)
		}
	}
	if s.Hostname != "" && !hostnamePattern().MatchString(s.Hostname) {
		return fieldError("hostname", "use letters, digits, '-' and '.', at most 64", "%q is not a host name", clip(s.Hostname))
	}
	return nil
}

func validateSource(s Spec) error {
	if s.RootFS != "" {
		if s.Image != "" {
			return fieldError("rootfs", "set either image or rootfs", "rootfs and image contradict each other")
		}
		if s.Platform != "" || s.Pull != PullMissing {
			return fieldError("rootfs", "leave platform and pull empty with rootfs", "platform and pull are about images")
		}
		if err := absolute("rootfs", s.RootFS); err != nil {
			return err
		}
	}
	if s.Image != "" {
		if len(s.Image) > 1024 || s.Image[0] == '-' || strings.ContainsFunc(s.Image, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return fieldError("image", "use a reference such as python:3.12-slim, or leave it empty for the builtin image", "%q is not an image reference", clip(s.Image))
		}
	}
	if s.Platform != "" && !platformPattern().MatchString(s.Platform) {
		return fieldError("platform", "use os/arch, for example linux/arm64", "%q is not a platform", clip(s.Platform))
	}
	switch s.Pull {
	case PullMissing, PullAlways, PullNever:
	default:
		return fieldError("pull", `use "always", "never" or nothing`, "unknown pull policy %q", clip(string(s.Pull)))
	}
	return nil
}

func validateResources(s Spec) error {
	switch {
	case math.IsNaN(s.CPUs) || math.IsInf(s.CPUs, 0) || s.CPUs < 0 || s.CPUs > 4096:
		return fieldError("cpus", "use a number of CPUs such as 0.5 or 2, or 0 for no limit", "%v is not a number of CPUs", s.CPUs)
	case s.CPUs > 0 && s.CPUs < minCPUs:
		return fieldError("cpus", "use at least 0.01", "%v CPUs are too few to run anything", s.CPUs)
	case s.Memory < 0 || s.Memory > 0 && s.Memory < minMemory:
		return fieldError("memory", "use at least 16 MiB, or 0 for the default of 2 GiB", "%d bytes are too little to boot", s.Memory)
	case s.Disk < 0 || s.Disk > 0 && s.Disk < minDisk:
		return fieldError("disk", "use at least 16 MiB, or 0 for the default", "%d bytes are too little for a disk", s.Disk)
	case s.Pids < 0 || s.Pids > 4<<20:
		return fieldError("pids", "use 1 to 4194304, or 0 for the default of 1024", "%d is not a number of processes", s.Pids)
	}
	return nil
}

func validateEnvironment(s Spec) error {
	if err := checkEnv("env", s.Env); err != nil {
		return err
	}
	if s.Dir != "" {
		if err := absolute("dir", s.Dir); err != nil {
			return err
		}
	}
	return checkUser(s.User)
}

// checkEnv is also used for Cmd.Env.
func checkEnv(field string, env []string) error {
	for _, kv := range env {
		switch i := strings.IndexByte(kv, '='); {
		case i < 0:
			return fieldError(field, "write KEY=value", "%q has no '='", clip(kv))
		case i == 0:
			return fieldError(field, "write KEY=value", "%q has no name before '='", clip(kv))
		case strings.IndexByte(kv, 0) >= 0:
			return fieldError(field, "pass binary values in a file", "%q has a NUL byte, which no environment can hold", clip(kv))
		case len(kv) > maxString:
			return fieldError(field, "pass long values in a file", "%q has %d bytes; Linux takes at most %d in one entry", clip(kv[:i]), len(kv), maxString)
		}
	}
	return nil
}

// checkUser looks at the form only; whether the user exists, the image knows.
func checkUser(user string) error {
	if user == "" {
		return nil
	}
	name, group, both := strings.Cut(user, ":")
	if name == "" || both && group == "" || strings.Contains(group, ":") || len(user) > 256 ||
		strings.ContainsFunc(user, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fieldError("user", "use name, uid, name:group or uid:gid", "%q is not a user", clip(user))
	}
	return nil
}

func checkArgs(field string, args []string) error {
	for _, a := range args {
		if strings.IndexByte(a, 0) >= 0 {
			return fieldError(field, "pass binary data through standard input or a file", "%q has a NUL byte, which no argument can hold", clip(a))
		}
		if len(a) > maxString {
			return fieldError(field, "pass long data through standard input or a file", "an argument has %d bytes; Linux takes at most %d", len(a), maxString)
		}
	}
	return nil
}

func validateMain(s Spec) error {
	if err := checkArgs("entrypoint", s.Entrypoint); err != nil {
		return err
	}
	if err := checkArgs("cmd", s.Cmd); err != nil {
		return err
	}
	if len(s.Entrypoint) > 0 && s.Entrypoint[0] == "" {
		return fieldError("entrypoint", "name a program", "the program's name is empty")
	}
	if !s.HasMain() {
		const hint = "set cmd, entrypoint or main"
		switch {
		case s.TTY:
			return fieldError("tty", hint, "there is no main command to give a terminal to")
		case s.Stdin:
			return fieldError("stdin", hint, "there is no main command to read it")
		case s.Restart.When != RestartNo:
			return fieldError("restart", hint, "there is no main command to restart")
		}
	}
	return nil
}

func validateVolumes(s Spec) error {
	seen := make(map[string]bool, len(s.Volumes))
	for i, v := range s.Volumes {
		field := fmt.Sprintf("volumes[%d]", i)
		switch {
		case v.Host == "" && v.Name == "":
			return fieldError(field, "set host to a folder or file, or name to a named volume", "no source")
		case v.Host != "" && v.Name != "":
			return fieldError(field, "set only one of them", "host and name contradict each other")
		case v.Target == "":
			return fieldError(field+".target", "give the absolute path in the box", "no target")
		}
		if v.Host != "" {
			if err := absolute(field+".host", v.Host); err != nil {
				return err
			}
		} else if !namePattern().MatchString(v.Name) {
			return fieldError(field+".name", "use 1 to 63 letters, digits, '_', '.' or '-', starting with a letter or digit; a host folder is an absolute path", "%q is not a volume name", clip(v.Name))
		}
		if err := absolute(field+".target", v.Target); err != nil {
			return err
		}
		target := path.Clean(v.Target)
		switch {
		case target == "/":
			return fieldError(field+".target", "mount it at a folder below /, or use rootfs for a whole file system", "a volume cannot replace the root")
		case within(target, "/proc"), within(target, "/sys"), target == "/dev":
			return fieldError(field+".target", "choose another path", "%s belongs to the box's kernel", target)
		case seen[target]:
			return fieldError(field+".target", "give every volume a target of its own", "%s is used twice", target)
		}
		seen[target] = true
	}
	return nil
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func validateNetwork(s Spec) error { return s.Network.Validate() }

func validateEngine(s Spec) error {
	switch s.Engine {
	case "", "auto", "gvisor", "vm":
	default:
		return fieldError("engine", `use "gvisor", "vm" or "auto"`, "unknown engine %q", clip(s.Engine))
	}
	switch s.Isolation {
	case "", IsolationKernel, IsolationHardware:
	default:
		return fieldError("isolation", fmt.Sprintf("use %q or %q", IsolationKernel, IsolationHardware), "unknown isolation %q", clip(string(s.Isolation)))
	}
	if s.Engine == "gvisor" && s.Isolation == IsolationHardware {
		return fieldError("isolation", `use engine "vm" or less isolation`, "engine gvisor gives no hardware virtualization")
	}
	return nil
}

func validateLife(s Spec) error {
	switch s.Restart.When {
	case RestartNo, RestartOnFailure, RestartAlways:
	default:
		return fieldError("restart", `use "on-failure", "always" or nothing`, "unknown restart condition %q", clip(string(s.Restart.When)))
	}
	switch {
	case s.Restart.Max < 0:
		return fieldError("restart.max", "use 0 for no bound", "%d is negative", s.Restart.Max)
	case s.Restart.Max > 0 && s.Restart.When != RestartOnFailure:
		return fieldError("restart.max", `set it only with "on-failure"`, "a bound has no meaning here")
	case s.Ephemeral && s.Restart.When != RestartNo:
		return fieldError("ephemeral", "choose one of them", "ephemeral and restart contradict each other")
	case s.StopTimeout < 0:
		return fieldError("stopTimeout", "use 0 for the default of 10s", "%v is negative", s.StopTimeout)
	case s.StopTimeout > 0 && s.StopTimeout < time.Millisecond, s.StopTimeout > maxStopTimeout:
		return fieldError("stopTimeout", "use 1ms to 24h", "%v is out of range", s.StopTimeout)
	}
	return nil
}

func absolute(field, p string) error {
	switch {
	case strings.IndexByte(p, 0) >= 0:
		return fieldError(field, "remove it", "%q has a NUL byte", clip(p))
	case !strings.HasPrefix(p, "/"):
		return fieldError(field, "give an absolute path", "%q is relative", clip(p))
	case len(p) > 4095:
		return fieldError(field, "use a path of at most 4095 bytes", "the path is too long")
	}
	return nil
}

// clip keeps hostile values from filling an error message.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

var errNoCommand = errors.New("no command given")

// lazy compiles a pattern when it is first used. Every process of a box starts
// a program with this package in it, and most of them never look at a Spec.
func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
