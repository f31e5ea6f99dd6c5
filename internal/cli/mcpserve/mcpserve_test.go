package mcpserve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/filesystem"
	"github.com/hutch-sandbox/hutch/agent/limits"
	"github.com/hutch-sandbox/hutch/agent/shell"
	"github.com/hutch-sandbox/hutch/workspace"
	"github.com/hutch-sandbox/hutch/workspace/hostdir"
)

const token = "a-token-of-the-tests"

// newServer serves the tools over a folder of this machine, together with a
// tool that returns every kind of content.
func newServer(t *testing.T) (*Server, string) {
	t.Helper()
	dir := t.TempDir()
	ws, err := hostdir.New(dir, hostdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), Options{Version: "v1", Instructions: "Mind the step."}, func(events func(agent.Event)) (*agent.Toolbox, error) {
		return agent.OpenToolbox(t.Context(), events, []agent.Capability{
			filesystem.New(filesystem.Options{}), shell.New(shell.Options{Deny: []string{}}), limits.Outputs(limits.OutputOptions{}), special(),
		}, agent.WithWorkspace(ws))
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

// special is a tool that returns what others do not.
func special() agent.Tool {
	type args struct {
		What string `json:"what"`
	}
	return agent.NewTool("special", "For the test.", func(_ context.Context, _ *agent.Call, a args) (agent.ToolOutput, error) {
		switch a.What {
		case "retry":
			return agent.ToolOutput{}, agent.Retryf("again")
		case "failed":
			return agent.ToolOutput{}, agent.Failedf("final")
		case "gone":
			return agent.ToolOutput{}, workspace.ErrUnavailable
		case "broken":
			return agent.ToolOutput{}, errors.New("broken")
		}
		return agent.ToolOutput{Text: "see \xff"}, nil
	})
}

// overStreams connects a client over two pipes. hangUp closes its side.
func overStreams(t *testing.T, s *Server, opt *mcp.ClientOptions) (session *mcp.ClientSession, hangUp func()) {
	t.Helper()
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- s.Streams(context.Background(), fromClient, toClient) }()
	session = connect(t, &mcp.IOTransport{Reader: fromServer, Writer: toServer}, opt)
	var once sync.Once
	hangUp = func() {
		once.Do(func() {
			_ = toServer.Close()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("the server ended with %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("the server does not end with its client")
			}
			_ = toClient.Close()
		})
	}
	t.Cleanup(hangUp)
	return session, hangUp
}

func connect(t *testing.T, transport mcp.Transport, opt *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opt).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// overHTTP serves HTTP and returns the address.
func overHTTP(t *testing.T, s *Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l, token) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
		s.Close()
	})
	return "http://" + l.Addr().String()
}

// client is an HTTP client that has the token and can vanish.
type client struct {
	http.Transport

	mu    sync.Mutex
	conns []net.Conn
}

func newClient() *client {
	c := &client{}
	c.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns = append(c.conns, conn)
		return conn, err
	}
	return c
}

func (c *client) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set(postHeader, "mine") // which the server does not believe
	return c.Transport.RoundTrip(r)
}

// vanish closes the connections and makes no more.
func (c *client) vanish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("vanished") }
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

func (c *client) connect(t *testing.T, url string) *mcp.ClientSession {
	t.Helper()
	return connect(t, &mcp.StreamableClientTransport{Endpoint: url + Path, HTTPClient: &http.Client{Transport: c}, MaxRetries: -1}, nil)
}

// answer calls a tool and returns its text and whether it is an error.
func answer(t *testing.T, session *mcp.ClientSession, name string, args map[string]any) (string, bool) {
	t.Helper()
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var b strings.Builder
	for _, c := range res.Content {
		text, ok := c.(*mcp.TextContent)
		if !ok {
			t.Fatalf("%s: a %T", name, c)
		}
		b.WriteString(text.Text + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n"), res.IsError
}

func TestEveryTool(t *testing.T) {
	s, _ := newServer(t)
	streams, _ := overStreams(t, s, nil)
	url := overHTTP(t, s)
	for name, session := range map[string]*mcp.ClientSession{"streams": streams, "http": newClient().connect(t, url)} {
		t.Run(name, func(t *testing.T) {
			if got := session.InitializeResult(); got != nil && got.Instructions != "Mind the step." {
				t.Errorf("instructions %q", got.Instructions)
			}
			list, err := session.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			called := map[string]bool{}
			for _, c := range []struct {
				tool string
				args map[string]any
				want string
			}{
				{"create_directory", map[string]any{"path": "d"}, "d"},
				{"write_file", map[string]any{"path": "d/a.txt", "content": "one\ntwo\n"}, "a.txt"},
				{"read_file", map[string]any{"path": "d/a.txt"}, "two"},
				{"edit_file", map[string]any{"path": "d/a.txt", "old_text": "two", "new_text": "three"}, "a.txt"},
				{"list_directory", map[string]any{"path": "d"}, "a.txt"},
				{"find_files", map[string]any{"pattern": "**/*.txt"}, "d/a.txt"},
				{"search_files", map[string]any{"pattern": "thr.e"}, "three"},
				{"file_info", map[string]any{"path": "d/a.txt"}, "file"},
				{"run_command", map[string]any{"command": "cat d/a.txt; exit 3"}, "[exit code: 3]"},
				{"special", map[string]any{"what": "x"}, "see \uFFFD"},
			} {
				text, failed := answer(t, session, c.tool, c.args)
				if failed || !strings.Contains(text, c.want) {
					t.Errorf("%s: %v %q, want %q", c.tool, failed, text, c.want)
				}
				called[c.tool] = true
			}
			started, _ := answer(t, session, "start_command", map[string]any{"command": "echo job"})
			id := jobID(t, started)
			for _, tool := range []string{"check_command", "stop_command"} {
				if text, failed := answer(t, session, tool, map[string]any{"command_id": id}); failed {
					t.Errorf("%s: %q", tool, text)
				}
				called[tool] = true
			}
			// A long result is paged to its end.
			text, _ := answer(t, session, "run_command", map[string]any{"command": "for i in 1 2 3 4 5 6 7 8 9; do printf '%05000d\\n' $i; done"})
			_, note, _ := strings.Cut(text, "id=")
			kept, _, ok := strings.Cut(note, ",")
			if !ok {
				t.Fatalf("no id in %.200q", text)
			}
			text, failed := answer(t, session, "read_result", map[string]any{"id": kept, "offset": 40000})
			if failed || !strings.Contains(text, "00009") {
				t.Errorf("read_result: %v %.300q", failed, text)
			}
			called["start_command"], called["read_result"] = true, true
			for _, tool := range list.Tools {
				if !called[tool.Name] {
					t.Errorf("%s is listed and not called here", tool.Name)
				}
				data, err := json.Marshal(tool.InputSchema)
				if err != nil || !bytes.Contains(data, []byte(`"object"`)) || tool.Description == "" {
					t.Errorf("%s: schema %s, %v", tool.Name, data, err)
				}
				if looks := tool.Annotations.ReadOnlyHint; looks == slices.Contains(changing, tool.Name) {
					t.Errorf("%s: said to change nothing: %v", tool.Name, looks)
				}
			}
		})
	}
}

// changing are the tools that may change something.
var changing = []string{"write_file", "edit_file", "create_directory", "run_command", "start_command", "stop_command", "special"}

// jobID finds the id of a background command in what start_command says.
func jobID(t *testing.T, text string) string {
	t.Helper()
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) }) {
		if len(word) == 32 {
			return word
		}
	}
	t.Fatalf("no id in %q", text)
	return ""
}

func TestFailures(t *testing.T) {
	s, _ := newServer(t)
	session, _ := overStreams(t, s, nil)
	for _, tt := range []struct{ what, want string }{
		{"retry", "again"},
		{"failed", "final"},
		{"gone", "no longer available"},
		{"broken", "broken"},
	} {
		text, failed := answer(t, session, "special", map[string]any{"what": tt.what})
		if !failed || !strings.Contains(text, tt.want) {
			t.Errorf("%s: %v %q", tt.what, failed, text)
		}
	}
	if text, failed := answer(t, session, "read_file", map[string]any{"path": 3}); !failed || !strings.Contains(text, "schema") {
		t.Errorf("bad arguments: %v %q", failed, text)
	}
	if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "nothing"}); err == nil {
		t.Error("an unknown tool is called")
	}
}

func TestProgress(t *testing.T) {
	s, _ := newServer(t)
	var mu sync.Mutex
	var said []string
	session, _ := overStreams(t, s, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, r.Params.Message)
	}})
	params := &mcp.CallToolParams{Name: "run_command", Arguments: map[string]any{"command": "echo first; read x <fifo; echo second"}}
	params.SetProgressToken("p")
	if text, failed := answer(t, session, "run_command", map[string]any{"command": "mkfifo fifo"}); failed {
		t.Fatal(text)
	}
	done := make(chan error, 1)
	go func() {
		_, err := session.CallTool(context.Background(), params)
		done <- err
	}()
	poll(t, "the first line, while the command runs", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return cmp.Equal(said, []string{"first\n"})
	})
	if text, failed := answer(t, session, "run_command", map[string]any{"command": "echo >fifo"}); failed {
		t.Fatal(text)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// sleeper starts a command that goes on until it is killed, and returns how to
// ask whether it runs.
func sleeper(t *testing.T, session *mcp.ClientSession, dir, name string) (lives func() bool, ended chan error) {
	t.Helper()
	ended = make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		_, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "run_command", Arguments: map[string]any{
			"command": "echo $$ >" + name + ".new; mv " + name + ".new " + name + "; exec sleep 1000", "timeout_seconds": 600,
		}})
		ended <- err
	}()
	file := filepath.Join(dir, name)
	poll(t, name, func() bool { _, err := os.Stat(file); return err == nil })
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return func() bool { return syscall.Kill(pid, 0) == nil }, ended
}

// TestAClientThatDisappears leaves no command running, and those of others
// alone.
func TestAClientThatDisappears(t *testing.T) {
	s, dir := newServer(t)
	url := overHTTP(t, s)
	other := newClient().connect(t, url)
	otherLives, _ := sleeper(t, other, dir, "other")

	session, hangUp := overStreams(t, s, nil)
	lives, _ := sleeper(t, session, dir, "streams")
	hangUp()
	poll(t, "the end of the command", func() bool { return !lives() })

	c := newClient()
	lives, _ = sleeper(t, c.connect(t, url), dir, "http")
	c.vanish()
	poll(t, "the end of the command", func() bool { return !lives() })

	// One that takes its call back.
	session, _ = overStreams(t, s, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "run_command", Arguments: map[string]any{"command": "echo $$ >back; exec sleep 1000"}})
		done <- err
	}()
	poll(t, "the command", func() bool {
		data, _ := os.ReadFile(filepath.Join(dir, "back"))
		return bytes.HasSuffix(data, []byte("\n"))
	})
	data, _ := os.ReadFile(filepath.Join(dir, "back"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	cancel()
	<-done
	poll(t, "the end of the command", func() bool { return syscall.Kill(pid, 0) != nil })

	if !otherLives() {
		t.Error("the command of another client was ended too")
	}
}

func TestTwoClientsAtOnce(t *testing.T) {
	s, _ := newServer(t)
	url := overHTTP(t, s)
	var wg sync.WaitGroup
	for i := range 2 {
		session := newClient().connect(t, url)
		wg.Go(func() {
			for n := range 20 {
				res, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: "run_command", Arguments: map[string]any{"command": fmt.Sprintf("echo %d-%d", i, n)}})
				if err != nil || res.IsError {
					t.Errorf("client %d, call %d: %v", i, n, err)
					return
				}
				if text := res.Content[0].(*mcp.TextContent).Text; !strings.Contains(text, fmt.Sprintf("%d-%d", i, n)) {
					t.Errorf("client %d, call %d got %q", i, n, text)
				}
			}
		})
	}
	wg.Wait()
}

func TestWhoIsRefused(t *testing.T) {
	s, _ := newServer(t)
	hello := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	for _, tt := range []struct {
		name     string
		loopback bool
		change   func(*http.Request)
		want     int
	}{
		{"good", true, func(*http.Request) {}, 200},
		{"no token", true, func(r *http.Request) { r.Header.Del("Authorization") }, 401},
		{"wrong token", true, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token+"x") }, 401},
		{"half a token", true, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token[:5]) }, 401},
		{"no bearer", true, func(r *http.Request) { r.Header.Set("Authorization", "Basic "+token) }, 401},
		{"token in the URL", true, func(r *http.Request) { r.Header.Del("Authorization"); r.URL.RawQuery = "token=" + token }, 401},
		{"name that leads here", true, func(r *http.Request) { r.Host = "evil.example:7777" }, 403},
		{"another name for this machine", true, func(r *http.Request) { r.Host = "[::1]:7777" }, 200},
		{"localhost", true, func(r *http.Request) { r.Host = "localhost" }, 200},
		{"page from elsewhere", true, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, 403},
		{"page of this machine", true, func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:7777") }, 200},
		{"page of another port", true, func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:3000") }, 403},
		{"page from nowhere", true, func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
		{"name, from elsewhere", false, func(r *http.Request) { r.Host = "build.example:7777" }, 200},
		{"page from elsewhere, from elsewhere", false, func(r *http.Request) {
			r.Host = "build.example:7777"
			r.Header.Set("Origin", "http://evil.example:7777")
		}, 403},
		{"another path", true, func(r *http.Request) { r.URL.Path = "/" }, 404},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequest(http.MethodPost, "http://127.0.0.1:7777"+Path, strings.NewReader(hello))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Accept", "application/json, text/event-stream")
			tt.change(r)
			w := &recorder{header: http.Header{}}
			s.Handler(token, tt.loopback).ServeHTTP(w, r)
			if w.status != tt.want {
				t.Errorf("status %d, want %d: %s", w.status, tt.want, w.body.String())
			}
			if strings.Contains(w.body.String(), token) {
				t.Error("the answer has the token in it")
			}
		})
	}
	w := &recorder{header: http.Header{}}
	r, _ := http.NewRequest(http.MethodPost, "http://127.0.0.1"+Path, strings.NewReader(hello))
	r.Header.Set("Authorization", "Bearer ")
	s.Handler("", true).ServeHTTP(w, r)
	if w.status != 401 {
		t.Errorf("an empty token opens: %d", w.status)
	}
}

// recorder is an http.ResponseWriter that may be flushed.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) Flush()              {}
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}
