package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// fetch URL [HEADER:VALUE]... prints the status and the body.
func fetch(args []string) error {
	req, err := http.NewRequest("GET", args[0], nil)
	if err != nil {
		return err
	}
	for _, h := range args[1:] {
		key, value, _ := strings.Cut(h, ":")
		req.Header.Set(key, os.ExpandEnv(value))
	}
	resp, err := (&http.Client{Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// download URL says when the first bytes are there, and how it ended.
func download(args []string) error {
	resp, err := http.Get(args[0])
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	buf := make([]byte, 64<<10)
	if _, err := resp.Body.Read(buf); err != nil {
		return err
	}
	fmt.Println("started")
	for err == nil {
		_, err = resp.Body.Read(buf)
	}
	fmt.Println("ended:", err)
	return nil
}

// dial ADDRESS... says which can be connected to.
func dial(args []string) error {
	for _, addr := range args {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err == nil {
			c.Close()
			fmt.Println(addr, "reached")
		} else {
			fmt.Println(addr, "closed:", err)
		}
	}
	return nil
}

// lookup NAME... prints addresses.
func lookup(args []string) error {
	for _, name := range args {
		addrs, err := net.LookupHost(name)
		fmt.Println(name, addrs, err)
	}
	return nil
}

// listen TCP UDP runs echo servers on two ports of all addresses.
func listen(args []string) error {
	l, err := net.Listen("tcp", ":"+args[0])
	if err != nil {
		return err
	}
	u, err := net.ListenPacket("udp", ":"+args[1])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(buf[:n], from)
		}
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}
