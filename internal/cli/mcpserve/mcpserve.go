// Package mcpserve offers the tools of an [agent.Toolbox] to clients that speak
// the Model Context Protocol: over two streams ([Server.Streams]) or over HTTP
// ([Server.Handler]).
//
// A call belongs to the connection it came by. When the client takes it back,
// closes the connection or disappears, the call's context ends, and with it the
// command that it runs. Any number of clients may be connected.
package mcpserve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/hutch-sandbox/hutch/agent"
	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/shell"
)

// MaxMessage bounds a message of a client, in bytes: a file that it writes is
// in one.
const MaxMessage = 64 << 20

// Options describe a server to its clients.
type Options struct {
	Version      string // of this program
	Instructions string // for the model; may be empty
	// Logger gets what the protocol's library has to say; nil means nobody.
	Logger *slog.Logger
}

// Server is an MCP server.
type Server struct {
	box *agent.Toolbox
	mcp *mcp.Server

	calls sync.WaitGroup // added to with mu held, and not once it is closed

	mu     sync.Mutex
	closed bool
	watch  map[string]func(string)  // by call: who is told of its output
	posts  map[string]chan struct{} // HTTP requests under way, by id; closed when the client is gone
}

// New makes a server over the toolbox that open returns. open gets the function
// that the toolbox is to call for events.
func New(ctx context.Context, opt Options, open func(events func(agent.Event)) (*agent.Toolbox, error)) (*Server, error) {
	s := &Server{watch: map[string]func(string){}, posts: map[string]chan struct{}{}}
	var err error
	if s.box, err = open(s.event); err != nil {
		return nil, err
	}
	tools, err := s.box.Tools(ctx)
	if err != nil {
		return nil, err
	}
	s.mcp = mcp.NewServer(&mcp.Implementation{Name: "hutch", Title: "Hutch", Version: opt.Version}, &mcp.ServerOptions{
		Instructions: opt.Instructions, Logger: opt.Logger,
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}, // they never change
	})
	for _, t := range tools {
		no := false
		s.mcp.AddTool(&mcp.Tool{
			Name: t.Name, Description: t.Description, InputSchema: t.Schema,
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: slices.Contains(looking, t.Name), OpenWorldHint: &no},
		}, s.call)
	}
	return s, nil
}

// looking are the tools that change nothing.
var looking = []string{
	"read_file", "list_directory", "find_files", "search_files", "file_info", "list_files", "grep", "check_command", "read_result",
}

// Close refuses further calls and waits for those under way, which end when
// their client's connection does.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.calls.Wait()
}

func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.calls.Add(1)
	}
	return !s.closed
}

// call runs a tool for a client.
func (s *Server) call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if !s.begin() {
		return nil, errors.New("the server is being closed")
	}
	defer s.calls.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if req.Extra != nil {
		defer s.untilGone(req.Extra.Header.Get(postHeader), cancel)()
	}
	id := "mcp_" + rand.Text()
	if token := req.Params.GetProgressToken(); token != nil {
		defer s.follow(ctx, id, req.Session, token)()
	}
	part, err := s.box.Call(ctx, model.ToolCall{ID: id, Name: req.Params.Name, Args: string(req.Params.Arguments)})
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err() // nobody waits for it
	}
	res := result(part)
	if err != nil {
		// What would end an agent's run is for the client to decide about.
		res.Content = append(res.Content, &mcp.TextContent{Text: err.Error()})
		res.IsError = true
	}
	return res, nil
}

// result turns what a model would be told into what a client is.
func result(part model.Part) *mcp.CallToolResult {
	res := &mcp.CallToolResult{Content: []mcp.Content{}}
	text := func(s string) {
		if s != "" {
			res.Content = append(res.Content, &mcp.TextContent{Text: strings.ToValidUTF8(s, "\uFFFD")})
		}
	}
	switch p := part.(type) {
	case model.Retry:
		text(p.Text)
		res.IsError = true
	case model.ToolReturn:
		text(p.Text)
		res.IsError = p.Outcome != ""
		for _, f := range p.Files {
			switch kind, _, _ := strings.Cut(f.MediaType, "/"); kind {
			case "image":
				res.Content = append(res.Content, &mcp.ImageContent{Data: f.Data, MIMEType: f.MediaType})
			case "audio":
				res.Content = append(res.Content, &mcp.AudioContent{Data: f.Data, MIMEType: f.MediaType})
			default:
				res.Content = append(res.Content, &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
					URI: "hutch:///" + f.Name, MIMEType: f.MediaType, Blob: f.Data,
				}})
			}
		}
	}
	return res
}

// follow tells a client of a call's output while it runs, as its progress. The
// returned function ends that.
func (s *Server) follow(ctx context.Context, id string, session *mcp.ServerSession, token any) (stop func()) {
	n := 0.0
	var mu sync.Mutex
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch[id] = func(message string) {
		mu.Lock()
		defer mu.Unlock()
		n++
		// A client that is not there any more learns nothing; the call ends by
		// its context.
		_ = session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: n, Message: message})
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watch, id)
	}
}

// event passes a command's output on to who follows the call.
func (s *Server) event(e agent.Event) {
	out, ok := e.(shell.Output)
	if !ok {
		return
	}
	s.mu.Lock()
	tell := s.watch[out.Call]
	s.mu.Unlock()
	if tell != nil {
		tell(out.Data)
	}
}

// Streams serves one client over two streams, usually standard input and
// output, until the client ends its side or ctx ends, which ends the calls under
// way. It closes neither stream; a read of in has to end with ctx.
func (s *Server) Streams(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := &endReader{Reader: in, ended: cancel}
	session, err := s.mcp.Connect(ctx, &mcp.IOTransport{Reader: gone, Writer: keepOpen{out}, MaxLineLength: MaxMessage}, nil)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- session.Wait() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		_ = session.Close()
		err = <-done
	}
	switch {
	case gone.err() != nil && errors.Is(gone.err(), io.EOF), ctx.Err() != nil:
		return nil // as it should end
	case err != nil:
		return fmt.Errorf("the connection to the client: %w", err)
	}
	return nil
}

// endReader says when its reader has ended.
type endReader struct {
	io.Reader
	ended func()

	mu  sync.Mutex
	why error
}

// Read reads; the first error says that there will be no more.
func (r *endReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.mu.Lock()
		r.why = err
		r.mu.Unlock()
		r.ended()
	}
	return n, err
}

// Close does nothing: the stream is the caller's.
func (r *endReader) Close() error { return nil }

func (r *endReader) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }
