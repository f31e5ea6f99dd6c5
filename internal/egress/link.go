package egress

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// link is the keeper's end of the box's link, as the stack sees it: an Ethernet
// of two, on which a frame is a message of a socket.
//
// gVisor's own endpoint for descriptors does the same, with a thread that waits
// in the kernel and frames that are dropped when the socket is full. Here the Go
// scheduler waits, which wakes one thread less for each frame that comes alone,
// and a full socket slows the sender down: an ordinary user's socket holds a few
// frames only, and each that is dropped costs a retransmission.
type link struct {
	fd int // of file; valid until destroy
	// checksums says that the other end looks at those of what it receives.
	checksums bool
	file      *os.File
	raw       syscall.RawConn
	wait      atomic.Int32   // milliseconds that a frame waits for room
	work      sync.WaitGroup // the reader

	mu         sync.RWMutex // guards the field below
	dispatcher stack.NetworkDispatcher
}

const (
	// maxFrame is a little more than a full frame, and all that one piece of
	// the stack's memory holds.
	maxFrame = buffer.MaxChunkSize
	// smallFrame and smaller ones are copied into memory of their size, so that
	// what waits in a queue holds at most twice what it says.
	smallFrame = maxFrame / 2
	// writeWait is enough for a busy machine; a box whose kernel reads no frames
	// any more loses them.
	writeWait = 50
)

// newLink makes the endpoint. It owns fd from the start, and reads from Attach
// on.
func newLink(fd int, checksums bool) (*link, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		closeFD(fd)
		return nil, err
	}
	l := &link{fd: fd, checksums: checksums, file: os.NewFile(uintptr(fd), "network link")}
	l.wait.Store(writeWait)
	var err error
	if l.raw, err = l.file.SyscallConn(); err != nil {
		l.file.Close()
		return nil, err
	}
	return l, nil
}

// shut ends the reader, and fails writes.
func (l *link) shut() { _ = unix.Shutdown(l.fd, unix.SHUT_RDWR) }

// destroy gives the descriptor back. Nothing may write any more.
func (l *link) destroy() {
	l.shut()
	l.Wait()
	_ = l.file.Close()
}

// window is how much the box may send ahead on one connection, so that the
// link's socket holds it: what does not fit, the box's kernel drops.
func (l *link) window() int {
	n, err := unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return MTU
	}
	return max(MTU, n/2)
}

// read delivers frames until the link is shut.
func (l *link) read() {
	frame := buffer.NewViewSize(maxFrame)
	defer func() { frame.Release() }()
	// The waiting is outside of the function, the reading within.
	_ = l.raw.Read(func(fd uintptr) bool {
		for {
			n, errno := rawRead(int(fd), frame.AsSlice())
			switch {
			case errno == unix.EAGAIN:
				return false
			case errno == unix.EINTR:
				continue
			case errno != 0 || n == 0 && ended(int(fd)):
				return true
			case n == 0:
				continue // an empty message, which looks like the end
			}
			v := frame
			if n <= smallFrame {
				v = buffer.NewViewWithData(frame.AsSlice()[:n])
			} else {
				v.CapLength(n)
				frame = buffer.NewViewSize(maxFrame)
			}
			l.deliver(v)
		}
	})
}

// ended reports whether the other end, or this one, is shut.
func ended(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		_, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return err != nil || fds[0].Revents != 0
		}
	}
}

// deliver hands a frame to the stack; it owns v.
func (l *link) deliver(v *buffer.View) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(v)})
	defer pkt.DecRef()
	hdr, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	if !ok {
		return
	}
	eth := header.Ethernet(hdr)
	dst := eth.DestinationAddress()
	if dst != tcpip.LinkAddress(GatewayMAC) && dst[0]&1 == 0 { // a set bit is for groups
		return
	}
	l.mu.RLock()
	d := l.dispatcher
	l.mu.RUnlock()
	if d != nil {
		d.DeliverNetworkPacket(eth.Type(), pkt)
	}
}

// WritePackets sends frames, and waits a little when there is no room.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	sent := 0
	for _, pkt := range pkts.AsSlice() {
		slices := pkt.AsSlices()
		errno := rawWritev(l.fd, slices)
		if errno == unix.EAGAIN {
			fds := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLOUT}}
			if n, err := unix.Poll(fds, int(l.wait.Load())); n > 0 && err == nil {
				errno = rawWritev(l.fd, slices)
			}
		}
		if errno != 0 {
			return sent, tcpip.TranslateErrno(errno)
		}
		sent++
	}
	return sent, nil
}

// Attach begins to read for a stack; without one it ends that.
func (l *link) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	began := l.dispatcher != nil
	l.dispatcher = d
	l.mu.Unlock()
	switch {
	case d == nil && began:
		l.shut()
		l.Wait()
	case d != nil && !began:
		l.work.Go(l.read)
	}
}

// IsAttached reports whether a stack is attached.
func (l *link) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dispatcher != nil
}

// Wait waits for the reader, which ends when the link is shut.
func (l *link) Wait() { l.work.Wait() }

// Close does nothing: the descriptor outlives the stack, see destroy.
func (l *link) Close() {}

// SetOnCloseAction is for devices that end with their endpoint.
func (l *link) SetOnCloseAction(func()) {}

// MTU returns MTU.
func (l *link) MTU() uint32 { return MTU }

// SetMTU does nothing: both ends know the MTU.
func (l *link) SetMTU(uint32) {}

// MaxHeaderLength is what AddHeader adds.
func (l *link) MaxHeaderLength() uint16 { return header.EthernetMinimumSize }

// LinkAddress returns GatewayMAC.
func (l *link) LinkAddress() tcpip.LinkAddress { return tcpip.LinkAddress(GatewayMAC) }

// SetLinkAddress does nothing: both ends know the address.
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities: both ends are on this machine, so that nothing can damage a
// frame, and checksums are not looked at, and made only for an other end that
// looks at them.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	c := stack.CapabilityRXChecksumOffload | stack.CapabilityResolutionRequired
	if !l.checksums {
		c |= stack.CapabilityTXChecksumOffload
	}
	return c
}

// ARPHardwareType is Ethernet.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// AddHeader adds the Ethernet header.
func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

// ParseHeader takes the Ethernet header off.
func (l *link) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}

// writer returns a function that writes all of what it is given to a
// connection of the host.
func writer(conn net.Conn) func([]byte) error {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return func(p []byte) error { _, err := conn.Write(p); return err }
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return func([]byte) error { return err }
	}
	return func(p []byte) error {
		var errno syscall.Errno
		err := raw.Write(func(fd uintptr) bool {
			for len(p) > 0 {
				var n int
				n, errno = rawWrite(int(fd), p)
				switch errno {
				case 0:
					p = p[n:]
				case unix.EINTR:
				default:
					return errno != unix.EAGAIN
				}
			}
			return true
		})
		if err == nil && errno != 0 {
			err = fmt.Errorf("write: %w", errno)
		}
		return err
	}
}
