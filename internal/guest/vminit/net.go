//go:build linux

package vminit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hutch-sandbox/hutch/internal/vmboot"
)

// configure brings the machine's one interface up, with the default routes.
func configure(n vmboot.Net) error {
	prefix, err := netip.ParsePrefix(n.Address)
	if err != nil || !prefix.Addr().Is4() {
		return fmt.Errorf("address %q: not one of IPv4", n.Address)
	}
	name, err := await("the network interface", func() (string, bool) {
		entries, _ := os.ReadDir("/sys/class/net")
		for _, e := range entries {
			if e.Name() != "lo" {
				return e.Name(), true
			}
		}
		return "", false
	})
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	set := func(what string, req uint, fill func(*unix.Ifreq) error) error {
		ifr, err := unix.NewIfreq(name)
		if err == nil {
			err = fill(ifr)
		}
		if err == nil {
			err = unix.IoctlIfreq(fd, req, ifr)
		}
		if err != nil {
			return fmt.Errorf("%s of %s: %w", what, name, err)
		}
		return nil
	}
	mask := net.CIDRMask(prefix.Bits(), 32)
	return errors.Join(
		set("MTU", unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(uint32(n.MTU)); return nil }),
		set("address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(prefix.Addr().AsSlice()) }),
		set("netmask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) }),
		set("flags", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }),
		neighbour(fd, name, n.Gateway, n.PeerMAC),
		route(fd, n.Gateway),
		configure6(name, n),
	)
}

// rtentry is struct rtentry of the kernel, as it is on 64-bit machines.
type rtentry struct {
	_       uint64
	dst     unix.RawSockaddrInet4
	gateway unix.RawSockaddrInet4
	genmask unix.RawSockaddrInet4
	flags   uint16
	_       [6]byte
	_       [2]uint64
	metric  int16
	_       [6]byte
	dev     uintptr
	_       [3]uint64
}

// route makes gateway, which is an address of IPv4, the default one.
func route(fd int, gateway string) error {
	addr, err := netip.ParseAddr(gateway)
	if err != nil || !addr.Is4() {
		return fmt.Errorf("gateway %q: not an address of IPv4", gateway)
	}
	req := rtentry{flags: unix.RTF_UP | unix.RTF_GATEWAY}
	req.dst.Family, req.genmask.Family = unix.AF_INET, unix.AF_INET
	req.gateway.Family, req.gateway.Addr = unix.AF_INET, addr.As4()
	return ioctl(fd, "route to "+gateway, unix.SIOCADDRT, unsafe.Pointer(&req))
}

// in6Ifreq and in6Rtmsg are struct in6_ifreq and in6_rtmsg of the kernel.
type (
	in6Ifreq struct {
		addr   [16]byte
		prefix uint32
		index  int32
	}
	in6Rtmsg struct {
		dst, src, gateway [16]byte
		kind              uint32
		dstLen, srcLen    uint16
		metric            uint32
		info              uint64
		flags             uint32
		index             int32
	}
)

// configure6 gives the interface its address and gateway of IPv6, if it has
// any. The address is in use at once: the link has nobody to ask whether it is
// taken.
func configure6(name string, n vmboot.Net) error {
	if n.Address6 == "" {
		return nil
	}
	prefix, err := netip.ParsePrefix(n.Address6)
	if err != nil || !prefix.Addr().Is6() {
		return fmt.Errorf("address %q: not one of IPv6", n.Address6)
	}
	gateway, err := netip.ParseAddr(n.Gateway6)
	if err != nil || !gateway.Is6() {
		return fmt.Errorf("gateway %q: not an address of IPv6", n.Gateway6)
	}
	for file, value := range map[string]string{"accept_dad": "0", "accept_ra": "0"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/"+file, []byte(value), 0o644); err != nil {
			return err
		}
	}
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	index := int32(iface.Index) //nolint:gosec // the kernel counts them from 1
	return errors.Join(
		ioctl(fd, "address "+n.Address6, unix.SIOCSIFADDR, unsafe.Pointer(&in6Ifreq{
			addr: prefix.Addr().As16(), prefix: uint32(prefix.Bits()), index: index,
		})),
		ioctl(fd, "route to "+n.Gateway6, unix.SIOCADDRT, unsafe.Pointer(&in6Rtmsg{
			gateway: gateway.As16(), metric: 1, flags: unix.RTF_UP | unix.RTF_GATEWAY, index: index,
		})),
	)
}

func ioctl(fd int, what string, req uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg)); errno != 0 {
		return fmt.Errorf("%s: %w", what, errno)
	}
	return nil
}

// arpreq is struct arpreq of the kernel.
type arpreq struct {
	pa      unix.RawSockaddrInet4
	ha      unix.RawSockaddr
	flags   int32
	netmask unix.RawSockaddr
	dev     [16]byte
}

const (
	atfCom  = 2 // the entry is complete
	atfPerm = 4 // and stays
)

// neighbour writes down who the gateway is: no round trip, nothing to spoof.
func neighbour(fd int, name, gateway, mac string) error {
	addr, err := netip.ParseAddr(gateway)
	if err != nil || !addr.Is4() {
		return fmt.Errorf("gateway %q: not an address of IPv4", gateway)
	}
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 {
		return fmt.Errorf("gateway's address %q: not one of Ethernet", mac)
	}
	req := arpreq{flags: atfCom | atfPerm}
	req.pa.Family, req.pa.Addr = unix.AF_INET, addr.As4()
	req.ha.Family = unix.ARPHRD_ETHER
	for i, b := range hw {
		req.ha.Data[i] = int8(b) //nolint:gosec // bytes as the kernel wants them
	}
	copy(req.dev[:len(req.dev)-1], name)
	return ioctl(fd, "neighbour "+gateway, unix.SIOCSARP, unsafe.Pointer(&req))
}
