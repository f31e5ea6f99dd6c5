package shell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/workspace"
)

// wrapper runs a background command and publishes its status. It is a session
// of its own, so that its processes can be stopped together. A TERM for the
// group reaches the wrapper too, which lives on until it has published how the
// command ended; a KILL leaves the exit code null.
const wrapper = `
d=$1
publish() { printf '{"pid":%s,"exit_code":%s}\n' "$$" "$1" >"$d/status.tmp" && mv -f "$d/status.tmp" "$d/status.json"; }
trap '' HUP
publish null
trap '[ -n "$child" ] && kill -TERM "$child" 2>/dev/null' TERM
child=
if [ "$3" = one ]; then
	sh -c "$2" >"$d/output.log" 2>&1 </dev/null &
else
	sh -c "$2" >"$d/stdout.log" 2>"$d/stderr.log" </dev/null &
fi
child=$!
while :; do
	wait "$child"
	code=$?
	kill -0 "$child" 2>/dev/null || break
done
if [ "$code" -gt 128 ]; then
	# The trap ends a wait with its signal's number, also one that saw the
	# command end. Then the status is still to be had; else there is none (127).
	wait "$child" 2>/dev/null
	late=$?
	[ "$late" = 127 ] || code=$late
fi
publish "$code"
`

// launcher starts the wrapper, unless this very command was started before,
// and waits for its first word: some places kill what a command leaves behind
// unless it has become a session of its own by then.
const launcher = `
d=$1
mkdir -p "${d%/*}" || exit 120
[ -e .hutch/.gitignore ] || echo '*' >.hutch/.gitignore
if mkdir "$d" 2>/dev/null; then
	if command -v setsid >/dev/null 2>&1; then
		setsid sh -c "$4" hutch-job "$d" "$2" "$3" </dev/null >/dev/null 2>&1 &
	else
		nohup sh -c "$4" hutch-job "$d" "$2" "$3" </dev/null >/dev/null 2>&1 &
	fi
fi
i=0
while [ ! -e "$d/status.json" ] && [ "$i" -lt 200 ]; do
	sleep 0.05 2>/dev/null || { sleep 1; i=$((i+19)); }
	i=$((i+1))
done
cat "$d/status.json" || exit 121
`

// probe says what is known of a command and whether its process lives.
const probe = `
[ -d "$1" ] || exit 122
cat "$1/status.json" 2>/dev/null || echo '{"pid":0,"exit_code":null}'
p=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' "$1/status.json" 2>/dev/null)
if [ -n "$p" ] && kill -0 "$p" 2>/dev/null; then echo alive; else echo dead; fi
`

// killer stops the group: TERM, and after two seconds KILL.
const killer = `
p=$1
group() { kill "-$1" "-$p" 2>/dev/null || kill "-$1" "$p" 2>/dev/null; }
group TERM || exit 0
i=0
while [ "$i" -lt 40 ]; do
	kill -0 "-$p" 2>/dev/null || kill -0 "$p" 2>/dev/null || exit 0
	sleep 0.05 2>/dev/null || { sleep 1; i=$((i+19)); }
	i=$((i+1))
done
group KILL
exit 0
`

// job is a background command.
type job struct {
	id, dir string
	pid     int
	code    *int // nil while it runs, and after it was killed
	alive   bool
}

// control runs one of our scripts.
func (s *session) control(ctx context.Context, script string, args ...string) (workspace.Result, error) {
	res, err := s.ws.Run(ctx, workspace.Command{
		Args: append([]string{"/bin/sh", "-c", script, "hutch"}, args...), Env: s.Env, Timeout: ControlTimeout,
	})
	return res, err
}

func (s *session) start(ctx context.Context, call *agent.Call, command string, oneLog bool) (job, error) {
	if err := s.check(command); err != nil {
		return job{}, err
	}
	id := s.id(call)
	j := job{id: id, dir: stateDir + "/" + id}
	logs := "two"
	if oneLog {
		logs = "one"
	}
	full, err := s.ws.Resolve(ctx, j.dir)
	if err != nil {
		return job{}, tell(err)
	}
	res, err := s.control(ctx, launcher, full, s.prelude()+command, logs, wrapper)
	if err != nil {
		if ctx.Err() != nil {
			s.abandon(ctx, full) // it may have been started
		}
		return job{}, tell(err)
	}
	if !res.OK() || s.parse(&j, res.Stdout) != nil {
		return job{}, agent.Failedf("the command could not be started in the background: %s", strings.TrimSpace(res.Stderr))
	}
	call.Emit(Started{Call: call.CallID, Command: command, ID: id})
	return j, nil
}

// abandon undoes a start whose caller has gone.
func (s *session) abandon(ctx context.Context, dir string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	j := job{}
	res, err := s.control(ctx, probe, dir)
	if err == nil && res.OK() && s.parse(&j, res.Stdout) == nil && j.pid > 1 {
		_, err = s.control(ctx, killer, fmt.Sprint(j.pid))
	}
	if err == nil {
		err = s.ws.Remove(ctx, dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.run.Logger().WarnContext(ctx, "shell: undoing the start of a background command", "dir", dir, "error", err)
	}
}

// parse reads what launcher and probe print.
func (s *session) parse(j *job, text string) error {
	first, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	var status struct {
		PID  int  `json:"pid"`
		Code *int `json:"exit_code"`
	}
	if err := json.Unmarshal([]byte(first), &status); err != nil {
		return err
	}
	j.pid, j.code, j.alive = status.PID, status.Code, strings.TrimSpace(rest) != "dead"
	return nil
}

func (s *session) startCommand(ctx context.Context, call *agent.Call, a struct {
	Command string `json:"command" jsonschema:"the command, for a POSIX shell"`
}) (string, error) {
	j, err := s.start(ctx, call, a.Command, false)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Started in the background. ID: %s", j.id), nil
}

type idArgs struct {
	CommandID string `json:"command_id" jsonschema:"the ID that start_command returned"`
}

// find looks a command up. The text is for the model when there is none.
func (s *session) find(ctx context.Context, id string) (job, string, error) {
	unknown := fmt.Sprintf("There is no background command with the ID %.64q.", id)
	if !idForm.MatchString(id) {
		return job{}, unknown, nil
	}
	j := job{id: id, dir: stateDir + "/" + id}
	res, err := s.control(ctx, probe, j.dir)
	switch {
	case err != nil:
		return job{}, "", tell(err)
	case res.ExitCode == 122:
		return job{}, unknown, nil
	case !res.OK():
		return job{}, "", agent.Failedf("the command could not be looked up: %s", strings.TrimSpace(res.Stderr))
	}
	if err := s.parse(&j, res.Stdout); err != nil {
		return job{}, "", agent.Failedf("the status of the command is damaged: %w", err)
	}
	return j, "", nil
}

func (s *session) checkCommand(ctx context.Context, _ *agent.Call, a idArgs) (string, error) {
	j, text, err := s.find(ctx, a.CommandID)
	if err != nil || text != "" {
		return text, err
	}
	body, err := s.logs(ctx, j)
	if err != nil {
		return "", err
	}
	return body + j.status(), nil
}

func (j job) status() string {
	switch {
	case j.code != nil:
		return fmt.Sprintf("[status: finished]\n[exit code: %d]", *j.code)
	case j.alive:
		return "[status: running]"
	}
	return "[status: finished]\n[exit code: not known, it was killed]"
}

// logs returns the ends of a command's logs.
func (s *session) logs(ctx context.Context, j job) (string, error) {
	chars := s.MaxOutput
	if chars <= 0 {
		chars = DefaultMaxOutput
	}
	var b strings.Builder
	var notes strings.Builder
	for _, stream := range []string{"stdout", "stderr", "output"} {
		file := j.dir + "/" + stream + ".log"
		info, err := s.ws.Stat(ctx, file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", tell(err)
		}
		if info.Size == 0 {
			continue
		}
		k := &sink{total: max(info.Size, 0)}
		// Half of the room each, in bytes; a little more, for lines to begin whole.
		from := max(0, info.Size-int64(chars*2))
		f, err := s.ws.Open(ctx, file, from)
		if err != nil {
			return "", tell(err)
		}
		k.tail, err = io.ReadAll(io.LimitReader(f, int64(chars*2)))
		f.Close()
		if err != nil {
			return "", tell(err)
		}
		text, cut := k.text(chars/2 - 200)
		fmt.Fprintf(&b, "[%s]\n%s", stream, text)
		if !strings.HasSuffix(text, "\n") {
			b.WriteByte('\n')
		}
		if cut {
			fmt.Fprintf(&notes, "[%s is cut to its end, %d of %d bytes; all of it is in the file %s]\n", stream, len(text), info.Size, file)
		}
	}
	if b.Len() == 0 {
		b.WriteString("(no output)\n")
	}
	return b.String() + notes.String(), nil
}

func (s *session) stopCommand(ctx context.Context, _ *agent.Call, a idArgs) (string, error) {
	j, text, err := s.find(ctx, a.CommandID)
	if err != nil || text != "" {
		return text, err
	}
	if j.alive && j.pid > 1 {
		if _, err := s.control(ctx, killer, fmt.Sprint(j.pid)); err != nil {
			return "", tell(err)
		}
		if again, _, err := s.find(ctx, a.CommandID); err == nil {
			j = again // how it ended
		}
	}
	body, err := s.logs(ctx, j)
	if err != nil {
		return "", err
	}
	if err := s.ws.Remove(ctx, j.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", tell(err)
	}
	code := ""
	if j.code != nil {
		code = fmt.Sprintf("[exit code: %d]\n", *j.code)
	}
	return body + code + "[stopped]", nil
}
