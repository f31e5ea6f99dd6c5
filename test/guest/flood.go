package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
)

// flood says, without end and without reading anything, whatever it can on the
// box's consoles and its network. It prints what it found to flood.
func flood([]string) error {
	ways := 0
	start := func(name string, write func([]byte) error) {
		buf := make([]byte, 1<<10)
		for n := range buf {
			buf[n] = byte(rand.Uint32())
		}
		if err := write(buf); err != nil {
			fmt.Fprintln(os.Stderr, "guest:", name, err)
			return
		}
		fmt.Println(name)
		ways++
		go func() {
			for {
				buf[rand.IntN(len(buf))] = byte(rand.Uint32())
				_ = write(buf) // full for a moment, or refused
			}
		}()
	}
	for _, path := range []string{"/proc/1/fd/1", "/dev/console", "/dev/ttyS0", "/dev/ttyAMA0", "/dev/kmsg"} {
		if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			start(path, func(p []byte) error { _, err := f.Write(p); return err })
		}
	}
	for _, addr := range []string{"169.254.77.1:53", "169.254.77.1:9", "8.8.8.8:9"} {
		if c, err := net.Dial("udp", addr); err == nil {
			start(addr, func(p []byte) error {
				_, err := c.Write(p)
				if errors.Is(err, syscall.ECONNREFUSED) {
					err = nil
				}
				return err
			})
		}
	}
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	const all = 0x0300 // ETH_P_ALL, as on the wire
	if fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, all); err == nil {
		to := &syscall.SockaddrLinklayer{Protocol: all, Ifindex: link.Index, Halen: 6}
		start("frames", func(p []byte) error {
			copy(p, "\x02HUTC\x01\x02HUTC\x02") // to the gateway, as the box
			p[12], p[13] = [...]byte{0x08, 0x08, 0x86}[p[20]%3], [...]byte{0x00, 0x06, 0xdd}[p[20]%3]
			return syscall.Sendto(fd, p, 0, to)
		})
	}
	if ways == 0 {
		return errors.New("nothing to flood")
	}
	fmt.Println("flooding")
	select {}
}
