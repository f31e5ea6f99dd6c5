package egress

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/hutch-sandbox/hutch/box"
)

// frames takes what a link delivers.
type frames struct {
	stack.NetworkDispatcher
	got chan []byte
}

func (f *frames) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	f.got <- pkt.Data().AsRange().ToSlice()
}

func linkPair(t *testing.T) (*link, *os.File) {
	t.Helper()
	fd, guest, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.Close() })
	l, err := newLink(fd, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.destroy)
	return l, guest
}

func frame(dst tcpip.LinkAddress, body []byte) []byte {
	f := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+len(body))
	header.Ethernet(f).Encode(&header.EthernetFields{SrcAddr: tcpip.LinkAddress(GuestMAC), DstAddr: dst, Type: header.IPv4ProtocolNumber})
	return append(f, body...)
}

// TestLinkReads: frames of all sizes come as they were sent, those that are
// for somebody else or no frames do not, and nothing ends the reader but shut.
func TestLinkReads(t *testing.T) {
	l, guest := linkPair(t)
	d := &frames{got: make(chan []byte, 16)}
	l.Attach(d)
	own := tcpip.LinkAddress(GatewayMAC)
	for _, size := range []int{1, 64, 1500, smallFrame - header.EthernetMinimumSize, smallFrame, MTU} {
		body := bytes.Repeat([]byte{byte(size), 7}, size/2+1)[:size]
		for _, other := range [][]byte{{}, {1, 2, 3}, frame(tcpip.LinkAddress("\x02\x00\x00\x00\x00\x09"), body)} {
			if _, err := guest.Write(other); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := guest.Write(frame(own, body)); err != nil {
			t.Fatal(err)
		}
		if got := <-d.got; !bytes.Equal(got, body) {
			t.Errorf("a frame of %d bytes came as one of %d, or changed", size, len(got))
		}
	}
	if _, err := guest.Write(frame("\xff\xff\xff\xff\xff\xff", []byte("all"))); err != nil {
		t.Fatal(err)
	}
	if got := <-d.got; string(got) != "all" {
		t.Errorf("a frame for all came as %q", got)
	}
	l.Attach(nil)
	if l.IsAttached() || len(d.got) > 0 {
		t.Errorf("attached: %v, %d frames too many", l.IsAttached(), len(d.got))
	}
}

// TestLinkWaits: a frame that finds the socket full waits for room instead of
// being lost, and one that finds nobody who reads is lost.
func TestLinkWaits(t *testing.T) {
	l, guest := linkPair(t)
	write := func(n byte) tcpip.Error {
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
			ReserveHeaderBytes: header.EthernetMinimumSize, Payload: buffer.MakeWithData(bytes.Repeat([]byte{n}, MTU-100)),
		})
		defer pkt.DecRef()
		pkt.NetworkProtocolNumber = header.IPv4ProtocolNumber
		l.AddHeader(pkt)
		var list stack.PacketBufferList
		list.PushBack(pkt)
		_, err := l.WritePackets(list)
		return err
	}
	full := 0
	for ; ; full++ {
		if err := write(0); err != nil {
			if _, ok := err.(*tcpip.ErrWouldBlock); !ok {
				t.Fatalf("a full link: %v", err)
			}
			break
		}
	}
	if full == 0 {
		t.Fatal("the link holds no frame at all")
	}
	// From here on somebody reads, so that none is lost.
	l.wait.Store(60_000)
	const more = 500
	read := make(chan int)
	go func() {
		n, buf := 0, make([]byte, maxFrame)
		for {
			size, err := unix.Read(int(guest.Fd()), buf)
			if err == unix.EINTR {
				continue
			}
			if err != nil || size == 0 {
				read <- n
				return
			}
			if buf[header.EthernetMinimumSize] == 1 {
				n++
			}
		}
	}()
	for range more {
		if err := write(1); err != nil {
			t.Fatal(err)
		}
	}
	l.shut()
	if n := <-read; n != more {
		t.Errorf("%d of %d frames came", n, more)
	}
}

// TestHeadersOf: a segment's data is told from its headers, whatever they are,
// and a frame that lies leads to no place that is none.
func TestHeadersOf(t *testing.T) {
	segment := func(v6 bool, ipHeader, tcpHeader int) []byte {
		f := frame(tcpip.LinkAddress(GatewayMAC), make([]byte, ipHeader+tcpHeader))
		if ip := f[header.EthernetMinimumSize:]; v6 {
			header.Ethernet(f).Encode(&header.EthernetFields{Type: header.IPv6ProtocolNumber})
			ip[header.IPv6NextHeaderOffset] = uint8(header.TCPProtocolNumber)
		} else {
			ip[0] = 4<<4 | byte(ipHeader/4)
			ip[9] = uint8(header.TCPProtocolNumber)
		}
		f[header.EthernetMinimumSize+ipHeader+12] = byte(tcpHeader/4) << 4
		return f
	}
	const before = 77
	for _, tc := range []struct {
		name  string
		frame []byte
		want  int
	}{
		{"IPv4", segment(false, 20, 20), 54},
		{"IPv4, timestamps", segment(false, 20, 32), 66},
		{"IPv4, every option", segment(false, 60, 60), 134},
		{"IPv6, timestamps", segment(true, 40, 32), 86},
		{"IPv6, of which too little was read", segment(true, 40, 32)[:usualHeaders], 86},
		{"no TCP", frame(tcpip.LinkAddress(GatewayMAC), make([]byte, 100)), before},
		{"a beginning", segment(false, 20, 20)[:20], before},
		{"nothing", nil, before},
	} {
		if got := headersOf(tc.frame, before); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
	for b := range 256 {
		for _, v6 := range []bool{false, true} {
			f := segment(v6, 40, 32)
			if !v6 {
				f[header.EthernetMinimumSize] = byte(b)
			}
			f[header.EthernetMinimumSize+40+12] = byte(b)
			for n := range len(f) + 1 {
				if got := headersOf(f[:n], before); got < header.EthernetMinimumSize || got > 134 {
					t.Fatalf("%d of the bytes, %#x: %d", n, b, got)
				}
			}
		}
	}
}

// TestSocketWriter: it takes what there is room for, says why it did not take
// the rest, and never waits.
func TestSocketWriter(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("data"), 1<<20)
	w := &socketWriter{fd: fds[1], room: 1000}
	if n, err := w.Write(data[:600]); n != 600 || err != nil {
		t.Errorf("with room: %d, %v", n, err)
	}
	if n, err := w.Write(data[:600]); n != 400 || err != errNoRoom || w.errno != 0 {
		t.Errorf("with room for some: %d, %v, %v", n, err, w.errno)
	}
	w.room = len(data)
	n, err := w.Write(data)
	if n == 0 || n == len(data) || err == nil || w.errno != unix.EAGAIN || w.room != len(data)-n {
		t.Errorf("to a full socket: %d, %v, %v, room for %d", n, err, w.errno, w.room)
	}
	closeFD(fds[0])
	if n, err := w.Write(data); n != 0 || err == nil || w.errno != unix.EPIPE {
		t.Errorf("to nobody: %d, %v, %v", n, err, w.errno)
	}
	closeFD(fds[1])
}

// What a box sends through a server that takes it in fits and starts arrives
// whole and in order, on many connections at once, and its answer after the end
// comes back.
func TestUploadsAreExact(t *testing.T) {
	w := newWorld(t)
	w.serve("93.184.216.34:9000", func(c net.Conn) {
		defer c.Close()
		sum, buf := sha256.New(), make([]byte, 300_000)
		for n := 1; ; n++ {
			got, err := c.Read(buf[:1+n*7919%len(buf)])
			sum.Write(buf[:got])
			if err != nil {
				break
			}
			if n%40 == 0 {
				time.Sleep(time.Millisecond) // it has something else to do
			}
		}
		_, _ = c.Write(sum.Sum(nil))
	})
	b := newTestBox(t, w, Config{Network: box.Network{Allow: []string{"93.184.216.34"}}})
	parallel(t, 8, func() error {
		c, err := b.dial("93.184.216.34:9000")
		if err != nil {
			return err
		}
		defer c.Close()
		sum := sha256.New()
		piece := make([]byte, 1<<20)
		for n := range 16 {
			for i := range piece {
				piece[i] = byte(n + i*i>>7)
			}
			data := piece[:len(piece)-n*1013]
			sum.Write(data)
			if _, err := c.Write(data); err != nil {
				return fmt.Errorf("piece %d: %w", n, err)
			}
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			return err
		}
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sum.Sum(nil)) {
			return fmt.Errorf("the server got %x, %v; want %x", got, err, sum.Sum(nil))
		}
		return nil
	})
}
