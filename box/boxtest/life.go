package boxtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hutch-sandbox/hutch/box"
)

func registry(s *suite) {
	s.rule("Create", "the first box of its kind is listed as created, has a 12-character id, a name, and the limits of its spec, and does not run", func(t *T) {
		b := t.create(box.Spec{Name: "first", Labels: map[string]string{"a": "1"}, Memory: 256 << 20})
		info, err := b.Info(t.ctx)
		t.ok(err, "Info")
		if !regexp.MustCompile(`^[a-z0-9]{12}$`).MatchString(info.ID) || info.ID != b.ID() {
			t.Errorf("id %q, handle's %q", info.ID, b.ID())
		}
		if info.Name != "first" || b.Name() != "first" || info.State != box.Created || info.Labels["a"] != "1" || info.CreatedAt.IsZero() || info.Image == "" {
			t.Errorf("info is %+v", info)
		}
		if info.Limits.Memory.Value != 256<<20 {
			t.Errorf("memory limit %v", info.Limits.Memory)
		}
	})
	s.rule("NameMadeUp", "a box without a name gets one that is valid and unique", func(t *T) {
		a, b := t.create(box.Spec{}), t.create(box.Spec{})
		if a.Name() == b.Name() || box.ValidateName(a.Name()) != nil {
			t.Errorf("names %q and %q", a.Name(), b.Name())
		}
	})
	s.rule("NameTaken", "a second box of one name is refused as Exists, and leaves nothing behind", func(t *T) {
		t.create(box.Spec{Name: "twice"})
		_, err := t.suite.rt.Create(t.ctx, box.Spec{Name: "twice", Image: t.suite.h.Image})
		t.is(err, box.ErrExists, "Create")
		infos, err := t.suite.rt.List(t.ctx, box.ListOptions{})
		t.ok(err, "List")
		if len(infos) != 1 {
			t.Errorf("%d boxes, want 1", len(infos))
		}
	})
	s.rule("NameRace", "of many creations of one name at once, exactly one succeeds", func(t *T) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		created := 0
		for range 8 {
			wg.Go(func() {
				_, err := t.suite.rt.Create(t.ctx, box.Spec{Name: "race", Image: t.suite.h.Image})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					created++
				} else {
					t.is(err, box.ErrExists, "Create")
				}
			})
		}
		wg.Wait()
		if created != 1 {
			t.Errorf("%d creations succeeded", created)
		}
		t.ok(t.suite.rt.Remove(t.ctx, "race", true), "Remove")
	})
	s.rule("GetOrCreate", "of many callers at once, one creates the box and all get the same one", func(t *T) {
		var wg sync.WaitGroup
		ids, news := make([]string, 8), make([]bool, 8)
		for i := range ids {
			wg.Go(func() {
				b, created, err := t.suite.rt.GetOrCreate(t.ctx, box.Spec{Name: "shared", Image: t.suite.h.Image})
				if err != nil {
					t.Errorf("GetOrCreate: %v", err)
					return
				}
				ids[i], news[i] = b.ID(), created
			})
		}
		wg.Wait()
		n := 0
		for i := range ids {
			if ids[i] != ids[0] {
				t.Errorf("ids %v", ids)
			}
			if news[i] {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d say that they created it", n)
		}
		t.ok(t.suite.rt.Remove(t.ctx, "shared", true), "Remove")
	})
	s.rule("Get", "a box is found by name, id, and unique beginning of the id; anything else is NotFound", func(t *T) {
		b := t.create(box.Spec{Name: "findme"})
		for _, ref := range []string{"findme", b.ID(), b.ID()[:6]} {
			got, err := t.suite.rt.Get(t.ctx, ref)
			t.ok(err, "Get "+ref)
			if got.ID() != b.ID() {
				t.Errorf("Get %q gives %s", ref, got.ID())
			}
		}
		for _, ref := range []string{"nosuchbox", "find", b.ID()[:2]} {
			_, err := t.suite.rt.Get(t.ctx, ref)
			t.is(err, box.ErrNotFound, "Get "+ref)
		}
	})
	s.rule("List", "boxes come newest first, and labels and states select", func(t *T) {
		a := t.create(box.Spec{Labels: map[string]string{"group": "x", "n": "1"}})
		b := t.create(box.Spec{Labels: map[string]string{"group": "x", "n": "2"}})
		t.create(box.Spec{})
		t.ok(b.Start(t.ctx), "Start")
		for _, c := range []struct {
			opts box.ListOptions
			want []string
		}{
			{box.ListOptions{Labels: map[string]string{"group": "x"}}, []string{b.ID(), a.ID()}},
			{box.ListOptions{Labels: map[string]string{"group": ""}}, []string{b.ID(), a.ID()}},
			{box.ListOptions{Labels: map[string]string{"group": "x", "n": "1"}}, []string{a.ID()}},
			{box.ListOptions{States: []box.State{box.Running}}, []string{b.ID()}},
			{box.ListOptions{Labels: map[string]string{"group": "y"}}, nil},
		} {
			infos, err := t.suite.rt.List(t.ctx, c.opts)
			t.ok(err, "List")
			var got []string
			for _, i := range infos {
				got = append(got, i.ID)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("List %+v gives %v, want %v", c.opts, got, c.want)
			}
		}
	})
	s.rule("Rename", "a renamed box is found by the new name only, and the old name is free", func(t *T) {
		b := t.create(box.Spec{Name: "before"})
		other := t.create(box.Spec{Name: "other"})
		t.is(other.SetName(t.ctx, "before"), box.ErrExists, "rename to a taken name")
		t.is(other.SetName(t.ctx, "no/good"), box.ErrInvalid, "rename to a bad name")
		t.ok(b.SetName(t.ctx, "after"), "SetName")
		_, err := t.suite.rt.Get(t.ctx, "before")
		t.is(err, box.ErrNotFound, "Get before")
		got, err := t.suite.rt.Get(t.ctx, "after")
		t.ok(err, "Get after")
		if got.ID() != b.ID() || b.Name() != "after" {
			t.Errorf("got %s %q", got.ID(), b.Name())
		}
		t.ok(other.SetName(t.ctx, "before"), "the old name is free")
	})
	s.rule("Remove", "removal is refused for a running box unless forced, frees the name at once, and is no error the second time", func(t *T) {
		b := t.create(box.Spec{Name: "gone"})
		t.ok(b.Start(t.ctx), "Start")
		t.is(t.suite.rt.Remove(t.ctx, "gone", false), box.ErrConflict, "Remove of a running box")
		t.ok(t.suite.rt.Remove(t.ctx, "gone", true), "Remove with force")
		_, err := t.suite.rt.Get(t.ctx, "gone")
		t.is(err, box.ErrNotFound, "Get")
		_, err = b.Exec(t.ctx, "true")
		t.is(err, box.ErrNotFound, "Exec in a removed box")
		t.ok(b.Remove(t.ctx), "second Remove")
		t.ok(t.suite.rt.Remove(t.ctx, "gone", false), "Remove by a name that is not there")
		t.create(box.Spec{Name: "gone"})
	})
	s.rule("Invalid", "a spec that is wrong is refused as Invalid with field and remedy, and nothing stays behind", func(t *T) {
		_, err := t.suite.driver.Create(t.ctx, box.Spec{Memory: -1})
		t.is(err, box.ErrInvalid, "the driver's own Create")
		_, err = t.suite.rt.Create(t.ctx, box.Spec{Env: []string{"novalue"}})
		t.is(err, box.ErrInvalid, "Create")
		var e *box.Error
		if errors.As(err, &e) && (e.Object != "env" || e.Hint == "") {
			t.Errorf("the error names %q and advises %q", e.Object, e.Hint)
		}
		_, err = t.suite.rt.Create(t.ctx, box.Spec{Image: t.suite.h.Image, User: "no-such-user"})
		if err == nil {
			t.Error("an unknown user was taken")
		}
		infos, err := t.suite.rt.List(t.ctx, box.ListOptions{})
		t.ok(err, "List")
		if len(infos) != 0 {
			t.Errorf("%d boxes stayed behind", len(infos))
		}
	})
	s.rule("NoImage", "an image that is nowhere is an error, and no box stays behind", func(t *T) {
		_, err := t.suite.rt.Create(t.ctx, box.Spec{Image: "no-such-image-anywhere:1", Pull: box.PullNever})
		t.is(err, box.ErrNotFound, "Create")
		infos, err := t.suite.rt.List(t.ctx, box.ListOptions{})
		t.ok(err, "List")
		if len(infos) != 0 {
			t.Errorf("%d boxes stayed behind", len(infos))
		}
	})
	s.rule("Events", "what happens to a box is told in order", func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		next := make(chan box.Event)
		var wg sync.WaitGroup
		wg.Go(func() {
			defer close(next)
			for ev, err := range t.suite.rt.Events(ctx) {
				if err != nil {
					t.Errorf("Events: %v", err)
					return
				}
				select {
				case next <- ev:
				case <-ctx.Done():
					return
				}
			}
		})
		defer wg.Wait()
		defer cancel()
		// The subscription begins some time after the loop: boxes are made
		// until one is seen.
		seen := false
		for i := 0; !seen; i++ {
			t.create(box.Spec{Name: fmt.Sprintf("sign%d", i)})
			select {
			case <-next:
				seen = true
			case <-time.After(100 * time.Millisecond):
			case <-t.ctx.Done():
				t.Fatal("no event was seen")
			}
		}
		b := t.create(box.Spec{Name: "eventful"})
		t.ok(b.Start(t.ctx), "Start")
		t.ok(b.Stop(t.ctx, -1), "Stop")
		t.ok(b.Remove(t.ctx), "Remove")
		var got []string
		for !slices.Contains(got, "remove") {
			select {
			case ev := <-next:
				if ev.ID == b.ID() {
					got = append(got, ev.Action)
				}
			case <-t.ctx.Done():
				t.Fatalf("seen only %v", got)
			}
		}
		if want := []string{"create", "start", "stop", "remove"}; !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
	})
	s.rule("Host", "the host says at least one engine that works, and counts boxes", func(t *T) {
		t.create(box.Spec{})
		info, err := t.suite.rt.Host(t.ctx)
		t.ok(err, "Host")
		if !slices.ContainsFunc(info.Engines, func(e box.EngineInfo) bool { return e.Usable && e.Default }) || info.Boxes != 1 {
			t.Errorf("host info %+v", info)
		}
		m, err := t.suite.rt.Metrics(t.ctx)
		t.ok(err, "Metrics")
		if m.Created < 1 || m.Boxes != 1 {
			t.Errorf("metrics %+v", m)
		}
	})
}

func life(s *suite) {
	s.rule("States", "created (or running, if booted ahead), running and stopped follow Start and Stop, which may be repeated", func(t *T) {
		b := t.create(box.Spec{})
		if got := t.state(b); got != box.Created && got != box.Running {
			t.Errorf("state %s, want created or running", got)
		}
		t.ok(b.Start(t.ctx), "Start")
		t.ok(b.Start(t.ctx), "second Start")
		info, err := b.Info(t.ctx)
		t.ok(err, "Info")
		if info.State != box.Running || info.StartedAt.IsZero() || info.Kernel == "" {
			t.Errorf("running: %+v", info)
		}
		t.ok(b.Stop(t.ctx, time.Second), "Stop")
		t.ok(b.Stop(t.ctx, time.Second), "second Stop")
		info, err = b.Info(t.ctx)
		t.ok(err, "Info")
		if info.State != box.Stopped || info.StoppedAt.IsZero() {
			t.Errorf("stopped: %+v", info)
		}
		t.ok(b.Kill(t.ctx), "Kill of a stopped box")
	})
	s.rule("Wake", "a command, a file operation, and a look at the processes each wake a stopped box", func(t *T) {
		b := t.create(box.Spec{})
		for name, use := range map[string]func() error{
			"exec": func() error { _, err := b.Exec(t.ctx, "true"); return err },
			"file": func() error { _, err := b.Stat(t.ctx, "/"); return err },
			"top":  func() error { _, err := b.Top(t.ctx); return err },
		} {
			t.ok(use(), name)
			if got := t.state(b); got != box.Running {
				t.Errorf("after %s the state is %s", name, got)
			}
			t.ok(b.Stop(t.ctx, 0), "Stop")
		}
	})
	s.rule("DiskKept", "files survive stop and kill", func(t *T) {
		b := t.create(box.Spec{})
		t.sh(b, "echo one > /kept; sync")
		t.ok(b.Stop(t.ctx, -1), "Stop")
		if got := t.sh(b, "cat /kept"); got != "one\n" {
			t.Errorf("after stop: %q", got)
		}
		_, err := b.WriteStream(t.ctx, "/synced", strings.NewReader("two"), box.WriteOptions{Sync: true})
		t.ok(err, "WriteStream")
		t.ok(b.Kill(t.ctx), "Kill")
		got, err := b.ReadFile(t.ctx, "/synced")
		t.ok(err, "ReadFile")
		if string(got) != "two" {
			t.Errorf("after kill: %q", got)
		}
	})
	s.rule("StopAsks", "stop sends TERM, so that a command can end well", func(t *T) {
		b := t.create(box.Spec{})
		c := b.Shell(t.ctx, `trap 'echo bye > /bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		if _, err := out.Read(make([]byte, 6)); err != nil {
			t.Fatalf("Read: %v", err)
		}
		t.ok(b.Stop(t.ctx, 20*time.Second), "Stop")
		_ = c.Wait()
		if _, err := b.Stat(t.ctx, "/bye"); err != nil {
			t.Errorf("the trap did not run: %v", err)
		}
	})
	s.rule("StopInsists", "a command that ignores TERM does not keep a box from stopping", func(t *T) {
		b := t.create(box.Spec{})
		c := b.Shell(t.ctx, `trap '' TERM; echo ready; while :; do sleep 0.05; done`)
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		if _, err := out.Read(make([]byte, 6)); err != nil {
			t.Fatalf("Read: %v", err)
		}
		t.ok(b.Stop(t.ctx, 200*time.Millisecond), "Stop")
		if c.Wait() == nil {
			t.Error("the command ended well")
		}
	})
	s.rule("KillMidCommand", "a command whose box is killed is Unavailable, not an exit status", func(t *T) {
		b := t.create(box.Spec{})
		c := b.Shell(t.ctx, "echo ready; sleep 300")
		out, err := c.StdoutPipe()
		t.ok(err, "StdoutPipe")
		t.ok(c.Start(), "Start")
		if _, err := out.Read(make([]byte, 6)); err != nil {
			t.Fatalf("Read: %v", err)
		}
		t.ok(b.Kill(t.ctx), "Kill")
		t.is(c.Wait(), box.ErrUnavailable, "Wait")
		if c.Status() != nil {
			t.Errorf("status %v", c.Status())
		}
	})
	if s.h.Crash != nil {
		s.rule("Crash", "when the box's kernel dies, commands are Unavailable, the box is found stopped or failed with a reason, and boots again", func(t *T) {
			b := t.create(box.Spec{})
			c := b.Shell(t.ctx, "echo ready; sleep 300")
			out, err := c.StdoutPipe()
			t.ok(err, "StdoutPipe")
			t.ok(c.Start(), "Start")
			if _, err := out.Read(make([]byte, 6)); err != nil {
				t.Fatalf("Read: %v", err)
			}
			t.suite.h.Crash(t.T, t.suite.driver, b)
			t.is(c.Wait(), box.ErrUnavailable, "Wait")
			t.eventually("the box is stopped", func() bool { s := t.state(b); return s == box.Stopped || s == box.Failed })
			info, err := b.Info(t.ctx)
			t.ok(err, "Info")
			if info.Reason == "" {
				t.Error("no reason is given")
			}
			t.sh(b, "true")
		})
	}
	s.rule("Wait", "Wait returns when the box has stopped, with nil for a box without main command, and gives up with its context", func(t *T) {
		b := t.create(box.Spec{})
		t.ok(b.Start(t.ctx), "Start")
		short, cancel := context.WithTimeout(t.ctx, 50*time.Millisecond)
		defer cancel()
		_, err := b.Wait(short)
		t.is(err, box.ErrTimeout, "Wait with a short context")
		done := make(chan error, 1)
		go func() {
			status, err := b.Wait(t.ctx)
			if err == nil && status != nil {
				err = fmt.Errorf("status %v", status)
			}
			done <- err
		}()
		t.ok(b.Stop(t.ctx, 0), "Stop")
		t.ok(<-done, "Wait")
	})
	s.rule("Stats", "a running box says what it uses", func(t *T) {
		b := t.create(box.Spec{})
		t.ok(b.Start(t.ctx), "Start")
		st, err := b.Stats(t.ctx)
		t.ok(err, "Stats")
		if st.Memory <= 0 || st.Uptime <= 0 || st.Leases < 1 {
			t.Errorf("stats %+v", st)
		}
	})
	s.rule("Processes", "commands that run are listed, in Processes and in Top", func(t *T) {
		b := t.create(box.Spec{})
		c := b.Command(t.ctx, "sleep", "271")
		t.ok(c.Start(), "Start")
		t.eventually("sleep in Top", func() bool { return t.processes(b, "sleep 271") == 1 })
		ps, err := b.Processes(t.ctx)
		t.ok(err, "Processes")
		if !slices.ContainsFunc(ps, func(p box.ProcessInfo) bool {
			return p.ID == c.ID() && p.Running && slices.Equal(p.Args, []string{"sleep", "271"})
		}) {
			t.Errorf("processes %+v", ps)
		}
		t.ok(c.Kill(), "Kill")
		t.exit(c.Wait())
	})
	if s.h.Pause {
		s.rule("Pause", "nothing runs in a paused box, and all goes on after Resume", func(t *T) {
			b := t.create(box.Spec{})
			t.ok(b.Start(t.ctx), "Start")
			t.ok(b.Pause(t.ctx), "Pause")
			short, cancel := context.WithTimeout(t.ctx, 200*time.Millisecond)
			defer cancel()
			if _, err := b.Exec(short, "true"); err == nil {
				t.Error("a command ran in a paused box")
			}
			t.ok(b.Resume(t.ctx), "Resume")
			t.sh(b, "true")
		})
	}
	s.rule("Spec", "hostname, environment, user and working directory of the spec hold for every command", func(t *T) {
		b := t.create(box.Spec{Hostname: "myhost", Env: []string{"A=spec", "B=spec"}, Dir: "/made/for/it", User: "12345:54321"})
		c := b.Shell(t.ctx, `hostname; pwd; id -u; id -g; echo "$A $B"`)
		c.Env = []string{"B=call"}
		out, err := c.Output()
		t.ok(err, "Output")
		if want := "myhost\n/made/for/it\n12345\n54321\nspec call\n"; string(out) != want {
			t.Errorf("got %q, want %q", out, want)
		}
	})
}

func mainCommand(s *suite) {
	s.rule("Exit", "a box stops when its main command ends, and keeps status and output", func(t *T) {
		b := t.create(box.Spec{Cmd: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, Entrypoint: []string{}})
		t.ok(b.Start(t.ctx), "Start")
		status, err := b.Wait(t.ctx)
		t.ok(err, "Wait")
		if status == nil || status.Code != 3 {
			t.Fatalf("status %v, want 3", status)
		}
		info, err := b.Info(t.ctx)
		t.ok(err, "Info")
		if info.State != box.Stopped || info.Exit == nil || info.Exit.Code != 3 || len(info.Main) == 0 {
			t.Errorf("info %+v", info)
		}
		var stdout, stderr string
		for e, err := range b.Logs(t.ctx, box.LogOptions{}) {
			t.ok(err, "Logs")
			if e.Time.IsZero() {
				t.Error("an entry has no time")
			}
			if e.Stderr {
				stderr += string(e.Data)
			} else {
				stdout += string(e.Data)
			}
		}
		if stdout != "out\n" || stderr != "err\n" {
			t.Errorf("logs %q and %q", stdout, stderr)
		}
		if got := t.state(b); got != box.Stopped {
			t.Errorf("reading logs made the box %s", got)
		}
	})
	s.rule("Attach", "AttachMain boots the box and gets the main command's output from its first byte, and its status", func(t *T) {
		b := t.create(box.Spec{Entrypoint: []string{"sh", "-c"}, Cmd: []string{"echo first; echo second; exit 4"}})
		c, err := b.AttachMain(t.ctx, box.AttachOptions{})
		t.ok(err, "AttachMain")
		out, err := c.Output()
		if e := t.exit(err); e.Code != 4 || string(out) != "first\nsecond\n" {
			t.Errorf("got %v and %q", e, out)
		}
	})
	s.rule("AttachNone", "AttachMain of a box without main command is Invalid", func(t *T) {
		b := t.create(box.Spec{})
		_, err := b.AttachMain(t.ctx, box.AttachOptions{})
		t.is(err, box.ErrInvalid, "AttachMain")
	})
	s.rule("Stdin", "with Stdin, what an attached caller writes reaches the main command", func(t *T) {
		b := t.create(box.Spec{Entrypoint: []string{"cat"}, Stdin: true})
		c, err := b.AttachMain(t.ctx, box.AttachOptions{})
		t.ok(err, "AttachMain")
		c.Stdin = strings.NewReader("hello\n")
		out, err := c.Output()
		t.ok(err, "Output")
		if string(out) != "hello\n" {
			t.Errorf("got %q", out)
		}
	})
	s.rule("Restart", "on-failure starts a failing command again, as often as it says, and keeps the last status", func(t *T) {
		b := t.create(box.Spec{Entrypoint: []string{"sh", "-c", "echo run >> /runs; exit 5"}, Restart: box.RestartPolicy{When: box.RestartOnFailure, Max: 2}})
		t.ok(b.Start(t.ctx), "Start")
		status, err := b.Wait(t.ctx)
		t.ok(err, "Wait")
		info, err := b.Info(t.ctx)
		t.ok(err, "Info")
		if status == nil || status.Code != 5 || info.Restarts != 2 {
			t.Errorf("status %v, %d restarts", status, info.Restarts)
		}
	})
	s.rule("NoRestart", "on-failure does not start a command again that ended well", func(t *T) {
		b := t.create(box.Spec{Entrypoint: []string{"true"}, Restart: box.RestartPolicy{When: box.RestartOnFailure}})
		t.ok(b.Start(t.ctx), "Start")
		status, err := b.Wait(t.ctx)
		t.ok(err, "Wait")
		info, err := b.Info(t.ctx)
		t.ok(err, "Info")
		if status == nil || !status.Success() || info.Restarts != 0 {
			t.Errorf("status %v, %d restarts", status, info.Restarts)
		}
	})
	s.rule("RestartAlways", "always starts it again until the box is stopped", func(t *T) {
		b := t.create(box.Spec{Entrypoint: []string{"true"}, Restart: box.RestartPolicy{When: box.RestartAlways}})
		t.ok(b.Start(t.ctx), "Start")
		t.eventually("two restarts", func() bool {
			info, err := b.Info(t.ctx)
			t.ok(err, "Info")
			return info.Restarts >= 2
		})
		t.ok(b.Stop(t.ctx, -1), "Stop")
		if got := t.state(b); got != box.Stopped {
			t.Errorf("state %s", got)
		}
	})
	s.rule("Ephemeral", "an ephemeral box is gone when it has stopped", func(t *T) {
		b := t.create(box.Spec{Name: "brief", Entrypoint: []string{"true"}, Ephemeral: true})
		t.ok(b.Start(t.ctx), "Start")
		t.eventually("the box is gone", func() bool {
			_, err := t.suite.rt.Get(t.ctx, "brief")
			return errors.Is(err, box.ErrNotFound)
		})
	})
	s.rule("Missing", "a main command that is not there has status 127, and the box stops", func(t *T) {
		b := t.create(box.Spec{Entrypoint: []string{"no-such-program"}})
		if err := b.Start(t.ctx); err != nil {
			t.Logf("Start: %v", err) // allowed to say so at once
		}
		status, err := b.Wait(t.ctx)
		t.ok(err, "Wait")
		if status == nil || status.Code != 127 || status.Reason != box.NotStarted {
			t.Errorf("status %+v", status)
		}
	})
	s.rule("LogsFollow", "following logs sees what comes later and ends with the box; Tail selects the last lines", func(t *T) {
		b := t.create(box.Spec{Entrypoint: []string{"sh", "-c", "echo a; echo b; while [ ! -e /go ]; do sleep 0.05; done; echo c"}})
		t.ok(b.Start(t.ctx), "Start")
		var got string
		for e, err := range b.Logs(t.ctx, box.LogOptions{Follow: true}) {
			t.ok(err, "Logs")
			got += string(e.Data)
			if got == "a\nb\n" {
				t.ok(b.WriteFile(t.ctx, "/go", nil, 0), "WriteFile")
			}
		}
		if got != "a\nb\nc\n" {
			t.Errorf("followed %q", got)
		}
		got = ""
		for e, err := range b.Logs(t.ctx, box.LogOptions{Tail: 2}) {
			t.ok(err, "Logs")
			got += string(e.Data)
		}
		if got != "b\nc\n" {
			t.Errorf("tail %q", got)
		}
	})
}

func leases(s *suite) {
	s.rule("LastClose", "a box that is not detached stops when its last user closes, and keeps its disk", func(t *T) {
		b := t.create(box.Spec{})
		t.sh(b, "echo kept > /f")
		second, err := t.suite.rt.Get(t.ctx, b.ID())
		t.ok(err, "Get")
		t.ok(second.Start(t.ctx), "Start")
		t.ok(b.Close(), "Close")
		t.ok(b.Close(), "second Close")
		// The other user still has it: it must not have begun to stop.
		t.sh(second, "cat /f")
		t.ok(second.Close(), "Close")
		t.eventually("the box has stopped", func() bool { return t.state(b) == box.Stopped })
		if got := t.sh(b, "cat /f"); got != "kept\n" {
			t.Errorf("read %q", got)
		}
	})
	s.rule("Detach", "a detached box runs on when nobody uses it", func(t *T) {
		b := t.create(box.Spec{Detach: true})
		t.sh(b, "true")
		boot, err := b.Info(t.ctx)
		t.ok(err, "Info")
		t.ok(b.Close(), "Close")
		other := t.create(box.Spec{}) // some time passes
		t.sh(other, "true")
		t.ok(other.Close(), "Close")
		t.eventually("the other box has stopped", func() bool { return t.state(other) == box.Stopped })
		now, err := b.Info(t.ctx)
		t.ok(err, "Info")
		if now.State != box.Running || !now.StartedAt.Equal(boot.StartedAt) {
			t.Errorf("state %s, started %v, then %v", now.State, boot.StartedAt, now.StartedAt)
		}
	})
	if s.h.Another == nil {
		return
	}
	s.rule("TwoPrograms", "two programs use the same box of one home; it stops when both have closed", func(t *T) {
		b := t.create(box.Spec{Name: "common"})
		d := t.suite.h.Another(t.T, t.suite.driver)
		rt := box.New(d)
		defer rt.Close()
		theirs, err := rt.Get(t.ctx, "common")
		t.ok(err, "Get")
		t.sh(b, "echo from-one > /f")
		if got := t.sh(theirs, "cat /f"); got != "from-one\n" {
			t.Errorf("the other program reads %q", got)
		}
		c := b.Command(t.ctx, "sleep", "272")
		t.ok(c.Start(), "Start")
		t.eventually("the other program sees the process", func() bool { return t.processes(theirs, "sleep 272") == 1 })
		t.ok(b.Close(), "Close")
		if got := t.state(theirs); got != box.Running {
			t.Errorf("state %s while the other uses it", got)
		}
		t.ok(rt.Close(), "Close of the other program")
		t.eventually("the box has stopped", func() bool { return t.state(b) == box.Stopped })
		_ = c.Wait()
	})
	s.rule("OwnBoxes", "closing a runtime stops the boxes that only it uses", func(t *T) {
		d := t.suite.h.Another(t.T, t.suite.driver)
		rt := box.New(d)
		defer rt.Close()
		theirs := t.createOn(rt, box.Spec{Name: "theirs"})
		t.sh(theirs, "true")
		t.ok(rt.Close(), "Close")
		b, err := t.suite.rt.Get(t.ctx, "theirs")
		t.ok(err, "Get")
		t.eventually("the box has stopped", func() bool { return t.state(b) == box.Stopped })
		if _, err := rt.Get(t.ctx, "theirs"); err == nil {
			t.Error("a closed runtime answers")
		} else if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a closed runtime says that the box is missing: %v", err)
		}
	})
}
