package box

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// A right spec passes; a wrong one is Invalid, names the field and has a
// remedy.
func TestSpecValidate(t *testing.T) {
	vol := func(vs ...Volume) Spec { return Spec{Volumes: vs} }
	tests := []struct {
		name  string
		spec  Spec
		field string // empty: valid
	}{
		{"zero", Spec{}, ""},
		{"everything", Spec{
			Name: "a.b_c-1", Labels: map[string]string{"k": "v", "x/y": ""}, Image: "python:3.12-slim", Platform: "linux/arm64/v8", Pull: PullAlways,
			CPUs: 0.5, Memory: 16 << 20, Disk: 1 << 30, Pids: 10, Env: []string{"A=", "B=c=d\n"}, Dir: "/x", User: "me:you", Hostname: "h-1.x",
			Entrypoint: []string{"sh"}, Cmd: []string{""}, TTY: true, Stdin: true, Engine: "gvisor", Isolation: IsolationKernel,
			Volumes: []Volume{{Host: "/h", Target: "/a"}, {Name: "n", Target: "/dev/shm", ReadOnly: true}},
			Restart: RestartPolicy{When: RestartOnFailure, Max: 3}, Detach: true, StopTimeout: time.Second,
		}, ""},
		{"name with slash", Spec{Name: "a/b"}, "name"},
		{"name with dash first", Spec{Name: "-a"}, "name"},
		{"long name", Spec{Name: strings.Repeat("a", 64)}, "name"},
		{"name with newline", Spec{Name: "a\n"}, "name"},
		{"empty label", Spec{Labels: map[string]string{"": "x"}}, "labels"},
		{"label with =", Spec{Labels: map[string]string{"a=b": "x"}}, "labels"},
		{"label value with NUL", Spec{Labels: map[string]string{"a": "\x00"}}, "labels"},
		{"hostname", Spec{Hostname: "no_underscore"}, "hostname"},
		{"image with space", Spec{Image: "a b"}, "image"},
		{"image like an option", Spec{Image: "-x"}, "image"},
		{"rootfs and image", Spec{RootFS: "/r", Image: "x"}, "rootfs"},
		{"rootfs and pull", Spec{RootFS: "/r", Pull: PullNever}, "rootfs"},
		{"relative rootfs", Spec{RootFS: "r"}, "rootfs"},
		{"platform", Spec{Platform: "linux"}, "platform"},
		{"pull", Spec{Pull: "sometimes"}, "pull"},
		{"negative CPUs", Spec{CPUs: -1}, "cpus"},
		{"NaN CPUs", Spec{CPUs: math.NaN()}, "cpus"},
		{"infinite CPUs", Spec{CPUs: math.Inf(1)}, "cpus"},
		{"tiny CPUs", Spec{CPUs: 0.001}, "cpus"},
		{"little memory", Spec{Memory: 16<<20 - 1}, "memory"},
		{"negative memory", Spec{Memory: -1}, "memory"},
		{"little disk", Spec{Disk: 16<<20 - 1}, "disk"},
		{"negative pids", Spec{Pids: -1}, "pids"},
		{"env without =", Spec{Env: []string{"A"}}, "env"},
		{"env without name", Spec{Env: []string{"=x"}}, "env"},
		{"env with NUL", Spec{Env: []string{"A=\x00"}}, "env"},
		{"long env", Spec{Env: []string{"A=" + strings.Repeat("x", 128<<10)}}, "env"},
		{"relative dir", Spec{Dir: "x"}, "dir"},
		{"dir with NUL", Spec{Dir: "/x\x00"}, "dir"},
		{"user", Spec{User: "a:b:c"}, "user"},
		{"user without group", Spec{User: "a:"}, "user"},
		{"argument with NUL", Spec{Cmd: []string{"a\x00"}}, "cmd"},
		{"empty program", Spec{Entrypoint: []string{"", "x"}}, "entrypoint"},
		{"tty without main", Spec{TTY: true}, "tty"},
		{"stdin without main", Spec{Stdin: true}, "stdin"},
		{"restart without main", Spec{Restart: RestartPolicy{When: RestartAlways}}, "restart"},
		{"volume without source", vol(Volume{Target: "/a"}), "volumes[0]"},
		{"volume with two sources", vol(Volume{Host: "/h", Name: "n", Target: "/a"}), "volumes[0]"},
		{"volume without target", vol(Volume{Name: "n"}), "volumes[0].target"},
		{"relative host", vol(Volume{Host: "h", Target: "/a"}), "volumes[0].host"},
		{"relative target", vol(Volume{Name: "n", Target: "a"}), "volumes[0].target"},
		{"target is the root", vol(Volume{Name: "n", Target: "/a/.."}), "volumes[0].target"},
		{"target in proc", vol(Volume{Name: "n", Target: "/proc/x"}), "volumes[0].target"},
		{"volume name", vol(Volume{Name: "../n", Target: "/a"}), "volumes[0].name"},
		{"same target twice", vol(Volume{Name: "n", Target: "/a"}, Volume{Name: "m", Target: "/a/"}), "volumes[1].target"},
		{"engine", Spec{Engine: "docker"}, "engine"},
		{"isolation", Spec{Isolation: "strong"}, "isolation"},
		{"gvisor with hardware", Spec{Engine: "gvisor", Isolation: IsolationHardware}, "isolation"},
		{"restart condition", Spec{Main: true, Restart: RestartPolicy{When: "never"}}, "restart"},
		{"bound without on-failure", Spec{Main: true, Restart: RestartPolicy{When: RestartAlways, Max: 1}}, "restart.max"},
		{"negative bound", Spec{Main: true, Restart: RestartPolicy{When: RestartOnFailure, Max: -1}}, "restart.max"},
		{"ephemeral with restart", Spec{Main: true, Ephemeral: true, Restart: RestartPolicy{When: RestartAlways}}, "ephemeral"},
		{"negative stop timeout", Spec{StopTimeout: -1}, "stopTimeout"},
		{"tiny stop timeout", Spec{StopTimeout: time.Microsecond}, "stopTimeout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.spec.Validate()
			if tt.field == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, ErrInvalid) {
				t.Fatalf("error is %v, want an Invalid *Error", err)
			}
			if e.Object != tt.field || e.Hint == "" {
				t.Errorf("field %q, remedy %q; want field %q", e.Object, e.Hint, tt.field)
			}
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
				t.Errorf("the message is not one line of reasonable length: %q", err)
			}
		})
	}
}
