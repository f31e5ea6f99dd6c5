// Command server starts an HTTP server in a box and talks to it through
// Box.DialContext. The box has no network: the connection goes through the
// box's keeper, and only this program can make it.
//
// The server is this very program, copied into the box; so build it static
// (CGO_ENABLED=0).
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/box/local"
)

const address = "127.0.0.1:8080"

func main() {
	var err error
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		err = serve()
	} else {
		err = run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

// serve is what runs in the box.
func serve() error {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		name, _ := os.Hostname()
		fmt.Fprintf(w, "hello %s, this is %s\n", r.URL.Query().Get("name"), name)
	})
	return http.ListenAndServe(address, nil)
}

// run is what runs on the host.
func run(ctx context.Context) error {
	rt, err := local.Open(ctx, local.Config{})
	if err != nil {
		return err
	}
	defer rt.Close()
	b, err := rt.Create(ctx, box.Spec{Hostname: "greeter"})
	if err != nil {
		return err
	}
	defer b.Remove(ctx)

	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.Open(self)
	if err != nil {
		return err
	}
	defer program.Close()
	if _, err := b.WriteStream(ctx, "/root/server", program, box.WriteOptions{Perm: 0o755}); err != nil {
		return err
	}
	server := b.Command(ctx, "/root/server", "serve")
	server.Stdout, server.Stderr = os.Stdout, os.Stderr
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Kill()

	client := &http.Client{Transport: &http.Transport{DialContext: b.DialContext}}
	defer client.CloseIdleConnections()
	resp, err := getWhenUp(ctx, client, "http://"+address+"/?name=you")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// getWhenUp asks until the server listens.
func getWhenUp(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		// The answer's body outlives this function, so it gets no deadline of
		// its own; the loop has one.
		resp, err := client.Get(url)
		if err == nil || ctx.Err() != nil {
			return resp, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
