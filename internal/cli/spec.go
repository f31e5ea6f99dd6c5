package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/hutch-sandbox/hutch/box"
)

// environment is the flags that make a command's environment.
type environment struct {
	vars  []string
	files []string
}

func (v *environment) register(fs *pflag.FlagSet) {
	repeated(fs, &v.vars, "env", "e", "K[=V]", "set a variable, or pass on the caller's", parseVariable)
	repeated(fs, &v.files, "env-file", "", "file", "read variables from a file, one a line", someText)
}

func parseVariable(s string) (string, error) {
	if s == "" || s[0] == '=' {
		return "", errors.New("the name is empty; write KEY=value, or KEY to pass on the caller's")
	}
	return s, nil
}

// resolve returns "KEY=value" entries: those of the files, then those of the
// flags. A name without value is the caller's variable, or nothing where the
// caller has none, as in docker.
func (v *environment) resolve(e *env) ([]string, error) {
	var out []string
	for _, file := range v.files {
		vars, err := e.readEnvFile(file)
		if err != nil {
			return nil, err
		}
		out = append(out, vars...)
	}
	for _, kv := range v.vars {
		if strings.Contains(kv, "=") {
			out = append(out, kv)
		} else if value, ok := e.getenv(kv); ok {
			out = append(out, kv+"="+value)
		}
	}
	return out, nil
}

const maxEnvFile = 16 << 20

// readEnvFile reads docker's env files: one variable a line, lines that start
// with # and empty lines are skipped, nothing is unquoted.
func (e *env) readEnvFile(name string) ([]string, error) {
	f, err := os.Open(e.hostPath(name))
	if err != nil {
		return nil, usagef("--env-file: %v; name a file that can be read", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err != nil {
		return nil, usagef("--env-file: %v; name a file that can be read", err)
	}
	if len(data) > maxEnvFile {
		return nil, usagef("--env-file: %s is larger than 16 MiB; split it, or copy it into the box", name)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	var out []string
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxEnvFile)
	for n := 1; lines.Scan(); n++ {
		if !utf8.Valid(lines.Bytes()) {
			return nil, usagef("--env-file: %s line %d is not UTF-8; pass such values with -e", name, n)
		}
		line := strings.TrimLeftFunc(lines.Text(), unicode.IsSpace)
		if line == "" || line[0] == '#' {
			continue
		}
		key, _, hasValue := strings.Cut(line, "=")
		switch {
		case key == "":
			return nil, usagef("--env-file: %s line %d has no name before '='; write KEY=value", name, n)
		case strings.ContainsFunc(key, unicode.IsSpace):
			return nil, usagef("--env-file: %s line %d has a space in the name %q; write KEY=value", name, n, clip(key))
		case hasValue:
			out = append(out, line)
		default:
			if value, ok := e.getenv(key); ok {
				out = append(out, key+"="+value)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, usagef("--env-file: %s: %v; write one variable a line", name, err)
	}
	return out, nil
}

// specFlags are the flags of run and create.
type specFlags struct {
	flags *pflag.FlagSet

	stdin, tty, rm, idle, quiet bool

	name, hostname, workdir, user, entrypoint string
	engine, pull, platform                    string
	labels                                    [][2]string
	env                                       environment
	cpus                                      float64
	memory, disk                              int64
	pids                                      int
	volumes                                   []box.Volume
	net                                       networkFlags
	ports                                     [][]box.Port
	links                                     []box.Link
	secrets                                   []secretFlag
	restart                                   box.RestartPolicy
	stopTimeout                               time.Duration
}

func (f *specFlags) register(fs *pflag.FlagSet) {
	f.flags = fs
	docker(fs)
	fs.BoolVarP(&f.stdin, "interactive", "i", false, "keep the command's standard input open")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fs.BoolVar(&f.rm, "rm", false, "remove the box when it stops")
	fs.BoolVar(&f.idle, "idle", false, "no main command: the box waits for exec")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "no progress while pulling")
	parsed(fs, &f.name, "name", "", "name", "the box's name (default: made up)", someText)
	repeated(fs, &f.labels, "label", "l", "key=value", "a label to find the box by", parseKeyValue)
	f.env.register(fs)
	parsed(fs, &f.workdir, "workdir", "w", "dir", "working directory in the box", someText)
	parsed(fs, &f.user, "user", "u", "user[:group]", "name or number to run as", someText)
	parsed(fs, &f.entrypoint, "entrypoint", "", "program", "replace the image's entrypoint", anyText)
	parsed(fs, &f.hostname, "hostname", "", "name", "the box's host name (default: its name)", someText)
	parsed(fs, &f.cpus, "cpus", "", "number", "CPU time it may use, in CPUs", parseCPUs)
	parsed(fs, &f.memory, "memory", "m", "size", "memory (default 2g)", parseSize)
	parsed(fs, &f.disk, "disk", "", "size", "what it may write to its disk (default 10g)", parseSize)
	parsed(fs, &f.pids, "pids", "", "number", "processes it may have (default 1024)", parseCount(1))
	parsed(fs, &f.pids, "pids-limit", "", "number", "the same as --pids", parseCount(1))
	repeated(fs, &f.volumes, "volume", "v", "from:to[:ro]", "mount a host path or a named volume", parseVolume)
	f.net.register(fs)
	repeated(fs, &f.ports, "publish", "p", "[ip:]host:box", "publish a port, /udp for UDP; host 0: any free", box.ParsePorts)
	repeated(fs, &f.links, "link", "", "name=box:port", "open one port of another box, by a name", box.ParseLink)
	repeated(fs, &f.secrets, "secret", "", "name@host", "keep a value from the box; see docs/network.md", parseSecret)
	parsed(fs, &f.restart, "restart", "", "policy", "no, on-failure[:N] or always", parseRestart)
	parsed(fs, &f.stopTimeout, "stop-timeout", "", "duration", "wait before stop kills (default 10s)", parsePositiveDuration)
	parsed(fs, &f.engine, "engine", "", "name", "auto, gvisor or vm", oneOf("auto", "gvisor", "vm"))
	parsed(fs, &f.pull, "pull", "", "when", "missing, always or never", oneOf("missing", "always", "never"))
	parsed(fs, &f.platform, "platform", "", "os/arch", "which platform of the image", someText)
}

// spec makes the spec of a box from the flags and the arguments after them.
// Whatever is wrong with them shows here, before anything was made.
func (f *specFlags) spec(e *env, args []string) (box.Spec, error) {
	image, command := "", args
	// "run -- cmd" names no image; "run image -- cmd" does.
	if f.flags.ArgsLenAtDash() != 0 && len(args) > 0 {
		image, command = args[0], withoutDashes(args[1:])
		if image == "" {
			return box.Spec{}, usagef("IMAGE: must not be empty; leave it out and write -- before the command for the builtin image")
		}
	}
	vars, err := f.env.resolve(e)
	if err != nil {
		return box.Spec{}, err
	}
	s := box.Spec{
		Name: f.name, Image: image, Platform: f.platform, Pull: box.PullPolicy(f.pull), Engine: f.engine,
		CPUs: f.cpus, Memory: f.memory, Disk: f.disk, Pids: f.pids,
		Env: vars, Dir: f.workdir, User: f.user, Hostname: f.hostname,
		TTY: f.tty, Stdin: f.stdin, Main: !f.idle,
		Restart: f.restart, Ephemeral: f.rm, StopTimeout: f.stopTimeout,
	}
	if f.pull == "missing" {
		s.Pull = box.PullMissing
	}
	if len(command) > 0 {
		s.Cmd = command
	}
	switch {
	case image == "" && len(command) > 0 && command[0] == "" && f.entrypoint == "":
		return s, usagef("COMMAND: must not be empty; name a program")
	case f.idle && (len(command) > 0 || f.flags.Changed("entrypoint")):
		return s, usagef("--idle: the box has a command to run; leave out one of them")
	case f.idle && (f.stdin || f.tty):
		return s, usagef("--idle: no main command uses -i or -t; leave them out here and give them to 'hutch exec'")
	case f.rm && f.restart.When != box.RestartNo:
		return s, usagef("--rm: contradicts --restart; leave out one of them")
	case f.flags.Changed("pids") && f.flags.Changed("pids-limit"):
		return s, usagef("--pids-limit: the same as --pids; leave out one of them")
	case f.flags.Changed("entrypoint") && f.entrypoint != "":
		// As in docker, the image's own arguments do not go with another
		// entrypoint.
		s.Entrypoint = []string{f.entrypoint}
		if s.Cmd == nil {
			s.Cmd = []string{}
		}
	case f.flags.Changed("entrypoint"):
		if len(command) == 0 {
			return s, usagef(`--entrypoint: "" removes the image's entrypoint and leaves nothing to run; add a command`)
		}
		s.Entrypoint, s.Cmd = command, []string{}
	}
	for _, kv := range f.labels {
		if s.Labels == nil {
			s.Labels = map[string]string{}
		}
		s.Labels[kv[0]] = kv[1]
	}
	for _, v := range f.volumes {
		if v.Host != "" {
			v.Host = filepath.Clean(e.hostPath(v.Host))
			if _, err := os.Stat(v.Host); err != nil {
				return s, usagef("--volume: %v; create it first, or write a name without slashes for a volume that Hutch keeps", err)
			}
		}
		s.Volumes = append(s.Volumes, v)
	}
	s.Network, s.Links = f.net.network(), f.links
	for _, ports := range f.ports {
		s.Ports = append(s.Ports, ports...)
	}
	if s.Secrets, err = e.readSecrets(f.secrets); err != nil {
		return s, err
	}
	if err := s.Validate(); err != nil {
		return s, &usageError{err.Error()}
	}
	return s, nil
}

// createBox pulls the image, showing progress, and creates the box.
func (e *env) createBox(ctx context.Context, spec box.Spec, quiet bool) (*box.Box, error) {
	rt, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	if spec.Name != "" {
		// A name that is taken is better known before a long pull; Create
		// has the last word.
		if b, err := rt.Get(ctx, spec.Name); err == nil && b.Name() == spec.Name {
			return nil, &box.Error{Kind: box.Exists, Op: "create", Object: spec.Name,
				Err: errors.New("a box of this name exists"), Hint: "choose another --name, or remove it with 'hutch rm " + spec.Name + "'"}
		}
	}
	if spec.Image != "" && spec.Image != box.BuiltinImage && spec.Pull != box.PullNever {
		if _, err := e.pull(ctx, spec.Image, box.PullOptions{Platform: spec.Platform, Policy: spec.Pull}, quiet); err != nil {
			return nil, err
		}
		// It was asked for just now.
		spec.Pull = box.PullMissing
	}
	b, err := rt.Create(ctx, spec)
	if err != nil || spec.Engine != "vm" || quiet {
		return b, err
	}
	if info, err := b.Info(ctx); err == nil {
		e.warnEmulated(info)
	}
	return b, nil
}
