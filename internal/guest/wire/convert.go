package wire

import (
	"io/fs"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hutch-sandbox/hutch/api/hutchv1"
	"github.com/hutch-sandbox/hutch/box"
)

// Linux's mode bits, which the protocol uses whatever system runs this code.
const (
	ModeType   = 0o170000
	ModeSocket = 0o140000
	ModeLink   = 0o120000
	ModeFile   = 0o100000
	ModeBlock  = 0o060000
	ModeDir    = 0o040000
	ModeChar   = 0o020000
	ModePipe   = 0o010000
	ModeSetuid = 0o4000
	ModeSetgid = 0o2000
	ModeSticky = 0o1000
)

var typeBits = []struct {
	mode uint32
	fs   fs.FileMode
}{
	{ModeSocket, fs.ModeSocket},
	{ModeLink, fs.ModeSymlink},
	{ModeFile, 0},
	{ModeBlock, fs.ModeDevice},
	{ModeDir, fs.ModeDir},
	{ModeChar, fs.ModeDevice | fs.ModeCharDevice},
	{ModePipe, fs.ModeNamedPipe},
}

var specialBits = []struct {
	mode uint32
	fs   fs.FileMode
}{
	{ModeSetuid, fs.ModeSetuid}, {ModeSetgid, fs.ModeSetgid}, {ModeSticky, fs.ModeSticky},
}

// FileMode is Linux's st_mode as a fs.FileMode.
func FileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for _, t := range typeBits {
		if mode&ModeType == t.mode {
			m |= t.fs
		}
	}
	for _, s := range specialBits {
		if mode&s.mode != 0 {
			m |= s.fs
		}
	}
	return m
}

// UnixMode is the reverse of FileMode.
func UnixMode(m fs.FileMode) uint32 {
	mode := uint32(m.Perm())
	for _, t := range typeBits {
		if m.Type() == t.fs {
			mode |= t.mode
		}
	}
	for _, s := range specialBits {
		if m&s.fs != 0 {
			mode |= s.mode
		}
	}
	return mode
}

// PermBits is the part of m that chmod takes: permission, setuid, setgid and
// sticky bits.
func PermBits(m fs.FileMode) uint32 { return UnixMode(m) &^ ModeType }

// FileInfo converts what the agent tells about a file.
func FileInfo(p *hutchv1.FileInfo) box.FileInfo {
	return box.FileInfo{
		FileName: string(p.GetName()),
		FileSize: p.GetSize(),
		FileMode: FileMode(p.GetMode()),
		Modified: p.GetModified().AsTime(),
		UID:      int(p.GetUid()),
		GID:      int(p.GetGid()),
		User:     p.GetUser(),
		Group:    p.GetGroup(),
		Inode:    p.GetInode(),
		Links:    p.GetLinks(),
		Target:   string(p.GetLink()),
		RealPath: string(p.GetRealPath()),
	}
}

// FileInfoMessage is the reverse of FileInfo.
func FileInfoMessage(fi box.FileInfo) *hutchv1.FileInfo {
	return &hutchv1.FileInfo{
		Name:     []byte(fi.FileName),
		Size:     fi.FileSize,
		Mode:     UnixMode(fi.FileMode),
		Modified: timestamppb.New(fi.Modified),
		Uid:      uint32(fi.UID),
		Gid:      uint32(fi.GID),
		User:     fi.User,
		Group:    fi.Group,
		Inode:    fi.Inode,
		Links:    fi.Links,
		Link:     []byte(fi.Target),
		RealPath: []byte(fi.RealPath),
	}
}

var reasons = map[hutchv1.ExitReason]box.ExitReason{
	hutchv1.ExitReason_EXIT_REASON_EXITED:        box.Exited,
	hutchv1.ExitReason_EXIT_REASON_TIMEOUT:       box.TimedOut,
	hutchv1.ExitReason_EXIT_REASON_CANCELED:      box.Killed,
	hutchv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY: box.OutOfMemory,
	hutchv1.ExitReason_EXIT_REASON_START_FAILED:  box.NotStarted,
}

// ExitStatus converts the end of a command. A reason that this version does
// not know counts as Exited.
func ExitStatus(e *hutchv1.Exited) box.ExitStatus {
	reason, ok := reasons[e.GetReason()]
	if !ok {
		reason = box.Exited
	}
	return box.ExitStatus{
		Code:    int(e.GetCode()),
		Signal:  syscall.Signal(e.GetSignal()),
		Reason:  reason,
		Message: Clip(e.GetMessage()),
	}
}

// ExitedMessage is the reverse of ExitStatus.
func ExitedMessage(s box.ExitStatus) *hutchv1.Exited {
	e := &hutchv1.Exited{Code: int32(s.Code), Signal: int32(s.Signal), Message: s.Message}
	for p, r := range reasons {
		if r == s.Reason {
			e.Reason = p
		}
	}
	return e
}

// Timestamp is t as a message; the zero time is nil.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Network is what a message says that a box may reach.
func Network(m *hutchv1.Network) box.Network {
	return box.Network{Preset: box.NetPreset(m.GetPreset()), Allow: m.GetAllow(), Deny: m.GetDeny()}
}

// NetworkMessage is the reverse of Network.
func NetworkMessage(n box.Network) *hutchv1.Network {
	return &hutchv1.Network{Preset: string(n.Preset), Allow: n.Allow, Deny: n.Deny}
}

// Port is a published port.
func Port(m *hutchv1.Port) box.Port {
	return box.Port{IP: m.GetIp(), Host: int(m.GetHost()), Box: int(m.GetBox()), Proto: m.GetProto()}
}

// PortMessage is the reverse of Port.
func PortMessage(p box.Port) *hutchv1.Port {
	return &hutchv1.Port{Ip: p.IP, Host: uint32(max(p.Host, 0)), Box: uint32(max(p.Box, 0)), Proto: p.Proto}
}
