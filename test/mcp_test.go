package test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// mcpBox is a home with a box that runs, for MCP servers to work in.
func mcpBox(t *testing.T) *home {
	t.Helper()
	realengine.Need(t, "gvisor")
	h := newHome(t)
	h.ok(t, "create", "--name", "dev", "--idle", "-w", "/workspace")
	h.ok(t, "start", "dev")
	return h
}

// TestMCPClientsThatDisappear leave no command running in the box, however they
// go, and the commands of others alone.
func TestMCPClientsThatDisappear(t *testing.T) {
	h := mcpBox(t)
	b, err := h.open(t).Get(t.Context(), "dev")
	if err != nil {
		t.Fatal(err)
	}
	connect := func(transport mcp.Transport) *mcp.ClientSession {
		t.Helper()
		s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), transport, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// Sleeps for a time that tells it from others, in the background.
	var calls sync.WaitGroup
	sleep := func(s *mcp.ClientSession, seconds string) {
		t.Helper()
		calls.Go(func() {
			_, _ = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "shell", Arguments: map[string]any{"command": "sleep " + seconds + " & wait"}})
		})
		if !eventually(20*time.Second, func() bool { return running(t, b, "sleep "+seconds) > 0 }) {
			t.Fatalf("sleep %s does not run", seconds)
		}
	}
	gone := func(how, seconds string) {
		t.Helper()
		if !eventually(20*time.Second, func() bool { return running(t, b, "sleep "+seconds) == 0 }) {
			t.Errorf("%s: the command goes on", how)
		}
	}

	url, token, stop := h.serveMCP(t)
	defer stop()
	transport := &bearer{token: token}
	other := connect(&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: transport}, MaxRetries: -1})
	sleep(other, "7000")

	cmd, in, out := h.stdioMCP(t)
	session := connect(&mcp.IOTransport{Reader: out, Writer: in})
	sleep(session, "7001")
	_ = in.Close()
	gone("closed", "7001")
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}

	cmd, in, out = h.stdioMCP(t)
	session = connect(&mcp.IOTransport{Reader: out, Writer: in})
	sleep(session, "7002")
	_ = cmd.Process.Kill()
	gone("killed with its server", "7002")
	_ = cmd.Wait()

	vanishing := &bearer{token: token}
	session = connect(&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: vanishing}, MaxRetries: -1})
	sleep(session, "7003")
	vanishing.vanish()
	gone("vanished", "7003")

	if running(t, b, "sleep 7000") == 0 {
		t.Error("the command of another client was ended too")
	}
	// While that one waits, the box serves others.
	third := connect(&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: &bearer{token: token}}, MaxRetries: -1})
	res, err := third.CallTool(t.Context(), &mcp.CallToolParams{Name: "shell", Arguments: map[string]any{"command": "echo here"}})
	if err != nil || res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "here") {
		t.Errorf("a second client at the same time: %+v, %v", res, err)
	}
	transport.vanish()
	stop()
	gone("the server ended", "7000")
	calls.Wait()
}

// stdioMCP starts "hutch mcp" on the box, and returns its standard streams.
func (h *home) stdioMCP(t *testing.T) (*exec.Cmd, io.WriteCloser, io.ReadCloser) {
	t.Helper()
	cmd := h.command(t, "mcp", "--ref", "dev")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, in, out
}

// serveMCP starts "hutch mcp --listen" on the box.
func (h *home) serveMCP(t *testing.T) (url, token string, stop func()) {
	t.Helper()
	cmd := h.command(t, "mcp", "--ref", "dev", "--listen", ":0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for token == "" && lines.Scan() {
		if at := strings.Index(lines.Text(), "http://"); at >= 0 {
			url = lines.Text()[at:]
		}
		if _, text, ok := strings.Cut(lines.Text(), "Bearer "); ok {
			token = text
		}
	}
	if url == "" || token == "" {
		t.Fatalf("it says neither where it is nor its token: %v", lines.Err())
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for lines.Scan() {
		}
	}()
	return url, token, sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-drained
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("hutch mcp ended with %v, want status 130", err)
		}
	})
}

// bearer is an HTTP client that has the token and can vanish.
type bearer struct {
	token string
	http.Transport

	mu   sync.Mutex
	gone []context.CancelFunc
	over bool
}

func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	b.mu.Lock()
	b.gone = append(b.gone, cancel)
	if b.over {
		cancel()
	}
	b.mu.Unlock()
	r = r.Clone(ctx)
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(r)
}

// vanish breaks the connections off and lets no more be made.
func (b *bearer) vanish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	for _, cancel := range b.gone {
		cancel()
	}
	b.CloseIdleConnections()
}

// inspector is the official client's package, from npm.
const (
	inspector        = "@modelcontextprotocol/inspector"
	inspectorVersion = "2.12.0"
)

// TestMCPInspector lists and calls every tool with the protocol's own client,
// each call with a server of its own, as editors start them.
func TestMCPInspector(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a program of npm's for each tool")
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("no npm: install it to test with the protocol's own client")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	h := mcpBox(t)
	bin, err := hutchProgram()
	if err != nil {
		required(t, "%v", err)
	}
	// Installed once: npx looks everything up anew for each call.
	dir := filepath.Join(cache, "hutch-test", "inspector-"+inspectorVersion)
	client := filepath.Join(dir, "node_modules", ".bin", "mcp-inspector")
	if _, err := os.Stat(client); err != nil {
		npm := exec.CommandContext(t.Context(), "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--loglevel=error", inspector+"@"+inspectorVersion)
		if out, err := npm.CombinedOutput(); err != nil {
			t.Skipf("the protocol's own client cannot be installed: %v: %s", err, ends(string(out)))
		}
	}
	inspect := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), client, append([]string{"--cli"}, args...)...)
		cmd.WaitDelay = 10 * time.Second
		return cmd.Output()
	}
	server := []string{bin, "--home", h.dir, "mcp", "--ref", "dev", "--tools", "all"}
	list := func(args ...string) []string {
		out, err := inspect(append(args, "--method", "tools/list")...)
		if err != nil {
			t.Fatalf("tools/list: %v: %s", err, out)
		}
		var res struct {
			Tools []struct{ Name string }
		}
		if err := json.Unmarshal(out, &res); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var names []string
		for _, tool := range res.Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	if _, err := inspect("--help"); err != nil {
		t.Skipf("%s cannot be started here, it wants a newer Node: %v", inspector, err)
	}
	call := func(tool string, args ...string) string {
		t.Helper()
		all := append(append([]string{}, server...), "--method", "tools/call", "--tool-name", tool)
		for _, a := range args {
			all = append(all, "--tool-arg", a)
		}
		out, err := inspect(all...)
		var res struct {
			Content []struct{ Text string }
			IsError bool
		}
		if jerr := json.Unmarshal(out, &res); err != nil || jerr != nil || res.IsError || len(res.Content) != 1 {
			t.Fatalf("%s: %v %v: %s", tool, err, jerr, out)
		}
		return res.Content[0].Text
	}
	called := map[string]bool{}
	must := func(want, tool string, args ...string) string {
		t.Helper()
		called[tool] = true
		text := call(tool, args...)
		if !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", tool, ends(text), want)
		}
		return text
	}
	must("d", "create_directory", "path=d")
	must("a.txt", "write_file", "path=d/a.txt", "content=one two")
	must("a.txt", "edit_file", "path=d/a.txt", "old_text=two", "new_text=three")
	must("one three", "read_file", "path=d/a.txt")
	must("a.txt", "list_directory", "path=d")
	must("d/a.txt", "list_files", "path=.")
	must("d/a.txt", "find_files", "pattern=**/*.txt")
	must("three", "search_files", "pattern=thr.e")
	must("three", "grep", "pattern=thr.e")
	must("file", "file_info", "path=d/a.txt")
	must("gvisor", "shell", "command=uname -r")
	must("[exit code: 3]", "run_command", "command=cat d/a.txt; exit 3")
	id := regexp.MustCompile(`[0-9a-f]{32}`).FindString(must("", "start_command", "command=echo from the job; sleep 8000"))
	must("from the job", "check_command", "command_id="+id)
	must("", "stop_command", "command_id="+id)
	h.ok(t, "exec", "dev", "sh", "-c", `cd /workspace && awk 'BEGIN { while (n < 900) printf "%200d match\n", n++ }' >big`)
	long := must("id=", "grep", "pattern=match", "path=big")
	m := regexp.MustCompile(`id=([0-9a-f]{32}), offset=(\d+)`).FindStringSubmatch(long)
	if m == nil {
		t.Fatalf("how to go on is not said: %q", ends(long))
	}
	must("match", "read_result", "id="+m[1], "offset="+m[2])
	for _, name := range list(server...) {
		if !called[name] {
			t.Errorf("%s is listed and not called", name)
		}
	}

	// Over HTTP it is the same server.
	url, token, stop := h.serveMCP(t)
	defer stop()
	if names := list(url, "--transport", "http", "--header", "Authorization: Bearer "+token); len(names) < 5 {
		t.Errorf("over HTTP there are the tools %v", names)
	}
}
