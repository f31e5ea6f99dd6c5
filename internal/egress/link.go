package egress

import (
	"errors"
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
//
// A frame's headers are read into memory of their own: the stack, which may
// have to change them, copies all of a piece that it shares.
func (l *link) read() {
	body := buffer.NewViewSize(maxFrame)
	defer func() { body.Release() }()
	split := usualHeaders
	// The waiting is outside of the function, the reading within.
	_ = l.raw.Read(func(fd uintptr) bool {
		for {
			headers := buffer.NewViewSize(split)
			n, errno := rawReadv(int(fd), headers.AsSlice(), body.AsSlice())
			if errno != 0 || n == 0 {
				headers.Release()
				switch {
				case errno == unix.EAGAIN:
					return false
				case errno == 0 && !ended(int(fd)), errno == unix.EINTR:
					continue // an empty message looks like the end
				}
				return true
			}
			headers.CapLength(min(n, split))
			split = headersOf(headers.AsSlice(), split)
			frame, data := buffer.MakeWithView(headers), buffer.Buffer{}
			switch n -= headers.Size(); {
			case n > smallFrame:
				body.CapLength(n)
				data = buffer.MakeWithView(body)
				body = buffer.NewViewSize(maxFrame)
			case n > 0:
				data = buffer.MakeWithView(buffer.NewViewWithData(body.AsSlice()[:n]))
			}
			frame.Merge(&data) // Append would fill the headers' memory up
			l.deliver(frame)
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

// usualHeaders is what comes before the data in a segment of TCP over IPv4 with
// timestamps.
const usualHeaders = header.EthernetMinimumSize + header.IPv4MinimumSize + header.TCPMinimumSize + 12

// headersOf returns where the next frame's data will begin: as in this one, of
// which the beginning is given, if it is a segment of TCP, else as before. It
// may be wrong, which costs a copy.
func headersOf(frame []byte, before int) int {
	if len(frame) < header.EthernetMinimumSize+header.IPv4MinimumSize {
		return before
	}
	var proto tcpip.TransportProtocolNumber
	n := header.EthernetMinimumSize
	switch ip := frame[n:]; header.Ethernet(frame).Type() {
	case header.IPv4ProtocolNumber:
		proto = header.IPv4(ip).TransportProtocol()
		n += int(header.IPv4(ip).HeaderLength())
	case header.IPv6ProtocolNumber:
		proto = tcpip.TransportProtocolNumber(ip[header.IPv6NextHeaderOffset])
		n += header.IPv6MinimumSize
	}
	if proto != header.TCPProtocolNumber {
		return before
	}
	if len(frame) < n+header.TCPMinimumSize {
		return n + usualHeaders - header.EthernetMinimumSize - header.IPv4MinimumSize
	}
	return n + int(header.TCP(frame[n:]).DataOffset())
}

// deliver hands a frame to the stack; it owns the frame.
func (l *link) deliver(frame buffer.Buffer) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: frame})
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

// socketWriter writes to a connection of the host and never waits: it takes what
// its room and the socket's hold, and then fails.
type socketWriter struct {
	fd    int
	room  int
	errno syscall.Errno // what the socket said
}

var errNoRoom = errors.New("no room")

func (w *socketWriter) Write(p []byte) (done int, err error) {
	for done < len(p) {
		part := p[done:min(len(p), done+w.room)]
		if len(part) == 0 {
			return done, errNoRoom
		}
		n, errno := rawWrite(w.fd, part)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			w.errno = errno
			return done, errno
		}
		done += n
		w.room -= n
	}
	return done, nil
}
