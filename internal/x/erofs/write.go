//go:build linux || darwin

package erofs

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// inode is one file of the image.
type inode struct {
	path  string // of one of its names, for reading
	mode  uint32 // as in stat
	uid   uint32
	gid   uint32
	rdev  uint32
	nlink uint32
	size  int64
	mtime int64
	nsec  uint32
	ino   uint32

	xattrs []byte // encoded, with header; nil without
	data   []byte // of folders and symbolic links
	layout int
	off    int64 // of the inode in the file
	block  uint32

	entries []entry // of a folder, with "." and ".."
}

type entry struct {
	name string
	node *inode
}

type linkKey struct{ dev, ino uint64 }

// writer holds an image while it is laid out.
type writer struct {
	ctx   context.Context
	nodes []*inode // in the order of the image, the root first
	links map[linkKey]*inode
	buf   []byte
}

// Write writes the tree below dir to w. Nothing may change the tree
// meanwhile; that it did is an error where it can be told. It needs the right
// to read every file.
func Write(ctx context.Context, dir string, w io.Writer) error {
	e := &writer{ctx: ctx, links: map[linkKey]*inode{}, buf: make([]byte, 1<<20)}
	root, err := e.scan(dir)
	if err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	if root.mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("erofs: %s is not a folder", dir)
	}
	if err := e.walk(root, root); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	blocks, metaEnd, err := e.layOut()
	if err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	out := bufio.NewWriterSize(w, 1<<20)
	if err := e.writeMeta(out, blocks, metaEnd); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	if err := e.writeData(out); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	return nil
}

// scan reads what the file system says of one file. A further name of a file
// that was seen already gives the same inode.
func (e *writer) scan(path string) (*inode, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	mode := uint32(st.Mode)
	folder := mode&unix.S_IFMT == unix.S_IFDIR
	key := linkKey{uint64(st.Dev), st.Ino}
	if n := e.links[key]; n != nil && !folder {
		n.nlink++
		return n, nil
	}
	n := &inode{
		path: path, mode: mode, uid: st.Uid, gid: st.Gid, nlink: 1,
		mtime: int64(st.Mtim.Sec), nsec: uint32(st.Mtim.Nsec), ino: uint32(len(e.nodes) + 1),
	}
	var err error
	if n.xattrs, err = readXattrs(path); err != nil {
		return nil, err
	}
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.size = st.Size
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return nil, err
		}
		n.data = []byte(target)
		n.size = int64(len(target))
	case unix.S_IFCHR, unix.S_IFBLK:
		// The kernel's own encoding of device numbers.
		major, minor := unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))
		n.rdev = minor&0xff | major<<8 | (minor&^0xff)<<12
	}
	if !folder && st.Nlink > 1 {
		e.links[key] = n
	}
	e.nodes = append(e.nodes, n)
	return n, nil
}

// walk reads the folder n and all below it.
func (e *writer) walk(n, parent *inode) error {
	if err := e.ctx.Err(); err != nil {
		return err
	}
	d, err := os.Open(n.path)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return err
	}
	n.nlink = 2
	n.entries = []entry{{".", n}, {"..", parent}}
	for _, name := range names {
		if len(name) > maxName {
			return fmt.Errorf("%s: the name is longer than %d bytes", filepath.Join(n.path, name), maxName)
		}
		child, err := e.scan(n.path + "/" + name)
		if err != nil {
			return err
		}
		n.entries = append(n.entries, entry{name, child})
	}
	slices.SortFunc(n.entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for _, c := range n.entries {
		if c.name == "." || c.name == ".." || c.node.mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		n.nlink++
		if err := e.walk(c.node, n); err != nil {
			return err
		}
	}
	n.size = dirSize(n.entries)
	return nil
}

// dirSize is the length of a folder's content: full blocks, and what the last
// one holds.
func dirSize(entries []entry) int64 {
	blocks, used := int64(0), 0
	for _, c := range entries {
		need := direntSize + len(c.name)
		if used+need > blockSize {
			blocks++
			used = 0
		}
		used += need
	}
	return blocks*blockSize + int64(used)
}

// dirData encodes a folder whose entries' inodes have their places.
func dirData(entries []entry) []byte {
	var out []byte
	for len(entries) > 0 {
		count, used := 0, 0
		for count < len(entries) && used+direntSize+len(entries[count].name) <= blockSize {
			used += direntSize + len(entries[count].name)
			count++
		}
		block := make([]byte, count*direntSize, blockSize)
		for i, c := range entries[:count] {
			at := block[i*direntSize:]
			binary.LittleEndian.PutUint64(at, c.node.nid())
			binary.LittleEndian.PutUint16(at[8:], uint16(len(block)))
			at[10] = c.node.kind()
			block = append(block, c.name...)
		}
		entries = entries[count:]
		if len(entries) > 0 {
			block = block[:blockSize]
		}
		out = append(out, block...)
	}
	return out
}

func (n *inode) nid() uint64 { return uint64(n.off / slot) }

func (n *inode) kind() byte {
	switch n.mode & unix.S_IFMT {
	case unix.S_IFREG:
		return kindRegular
	case unix.S_IFDIR:
		return kindDirectory
	case unix.S_IFCHR:
		return kindCharDevice
	case unix.S_IFBLK:
		return kindBlockDevice
	case unix.S_IFIFO:
		return kindFifo
	case unix.S_IFSOCK:
		return kindSocket
	case unix.S_IFLNK:
		return kindSymlink
	}
	return kindUnknown
}

// layOut gives every inode and every content its place. It returns the number
// of blocks and where metadata ends.
func (e *writer) layOut() (blocks uint32, metaEnd int64, err error) {
	off := int64(superOffset + superSize)
	for _, n := range e.nodes {
		head := int64(inodeSize + len(n.xattrs))
		tail := int64(0)
		packed := n.mode&unix.S_IFMT == unix.S_IFDIR || n.mode&unix.S_IFMT == unix.S_IFLNK
		if packed {
			tail = n.size % blockSize
		}
		if packed && tail > 0 && head+tail <= blockSize {
			n.layout = layoutInline
		} else {
			tail = 0
		}
		// A packed tail must lie in one block, and an inode is read more
		// easily when it does.
		if room := blockSize - off%blockSize; head+tail <= blockSize && head+tail > room {
			off += room
		}
		n.off = off
		off = (off + head + tail + slot - 1) / slot * slot
	}
	metaEnd = (off + blockSize - 1) / blockSize * blockSize
	next := metaEnd / blockSize
	// Folders first: they are read together.
	for _, folders := range []bool{true, false} {
		for _, n := range e.nodes {
			if (n.mode&unix.S_IFMT == unix.S_IFREG) == folders {
				continue
			}
			if count := n.plainBlocks(); count > 0 {
				if next+count > 1<<32-2 {
					return 0, 0, errors.New("the tree is larger than 16 TiB")
				}
				n.block = uint32(next)
				next += count
			}
		}
	}
	return uint32(next), metaEnd, nil
}

// plainBlocks is how many blocks of their own the content has.
func (n *inode) plainBlocks() int64 {
	switch n.mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
	default:
		return 0
	}
	if n.layout == layoutInline {
		return n.size / blockSize
	}
	return (n.size + blockSize - 1) / blockSize
}

// writeMeta writes everything before the data blocks.
func (e *writer) writeMeta(w io.Writer, blocks uint32, metaEnd int64) error {
	meta := make([]byte, metaEnd)
	for _, n := range e.nodes {
		if n.entries != nil {
			n.data = dirData(n.entries)
			if int64(len(n.data)) != n.size {
				return fmt.Errorf("%s: encoded as %d bytes, planned as %d", n.path, len(n.data), n.size)
			}
		}
		n.encode(meta[n.off:])
		if n.layout == layoutInline {
			tail := n.data[n.size/blockSize*blockSize:]
			copy(meta[n.off+inodeSize+int64(len(n.xattrs)):], tail)
		}
	}
	super := meta[superOffset : superOffset+superSize]
	le := binary.LittleEndian
	le.PutUint32(super, magic)
	le.PutUint32(super[8:], featureCompatChecksum)
	super[12] = 12 // log2 of blockSize
	le.PutUint16(super[14:], uint16(e.nodes[0].nid()))
	le.PutUint64(super[16:], uint64(len(e.nodes)))
	le.PutUint32(super[36:], blocks)
	// Over the rest of the superblock's block, with the sum itself as zero.
	sum := ^crc32.Checksum(meta[superOffset:blockSize], crc32.MakeTable(crc32.Castagnoli))
	le.PutUint32(super[4:], sum)
	_, err := w.Write(meta)
	return err
}

// encode writes the inode and its attributes.
func (n *inode) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint16(b, uint16(1|n.layout<<1))
	if len(n.xattrs) > 0 {
		le.PutUint16(b[2:], uint16((len(n.xattrs)-12)/4+1))
	}
	le.PutUint16(b[4:], uint16(n.mode))
	le.PutUint64(b[8:], uint64(n.size))
	switch n.mode & unix.S_IFMT {
	case unix.S_IFCHR, unix.S_IFBLK:
		le.PutUint32(b[16:], n.rdev)
	default:
		le.PutUint32(b[16:], n.block)
	}
	le.PutUint32(b[20:], n.ino)
	le.PutUint32(b[24:], n.uid)
	le.PutUint32(b[28:], n.gid)
	le.PutUint64(b[32:], uint64(n.mtime))
	le.PutUint32(b[40:], n.nsec)
	le.PutUint32(b[44:], n.nlink)
	copy(b[inodeSize:], n.xattrs)
}

// writeData writes the data blocks in the order of layOut.
func (e *writer) writeData(w *bufio.Writer) error {
	for _, n := range e.nodes {
		if count := n.plainBlocks(); count > 0 && n.mode&unix.S_IFMT != unix.S_IFREG {
			data := make([]byte, count*blockSize)
			copy(data, n.data)
			if _, err := w.Write(data); err != nil {
				return err
			}
		}
	}
	for _, n := range e.nodes {
		if n.mode&unix.S_IFMT == unix.S_IFREG && n.size > 0 {
			if err := e.copyFile(w, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *writer) copyFile(w *bufio.Writer, n *inode) error {
	if err := e.ctx.Err(); err != nil {
		return err
	}
	fd, err := unix.Open(n.path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: n.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), n.path)
	defer f.Close()
	copied, err := io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(f, n.size), e.buf)
	if err != nil {
		return err
	}
	if copied != n.size {
		return fmt.Errorf("%s became shorter while it was read", n.path)
	}
	if over := n.size % blockSize; over > 0 {
		_, err = w.Write(make([]byte, blockSize-over))
	}
	return err
}
