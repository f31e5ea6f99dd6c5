// Package erofs writes the content of a folder as an EROFS image: a read-only
// file system that the Linux kernel mounts directly.
//
// The image is uncompressed, with blocks of 4 KiB and no incompatible
// features, so that every kernel since 5.4 reads it. Contents of regular files
// start at a block's edge and are never packed into metadata: such files can
// be mapped by every reader. Small folders and symbolic links are packed,
// which saves a block for each.
//
// Kept are kinds, owners, modes with the set-id bits, modification times, hard
// links, device numbers and extended attributes. Names are bytes.
//
// The layout, from the start of the file:
//
//	block 0       1 KiB of nothing, the superblock, then the first inodes
//	…             the other inodes, each with its attributes and its packed tail
//	data blocks   folders that were not packed, then files, in the inodes' order
package erofs

// The on-disk format's numbers.
const (
	blockSize   = 4096
	superOffset = 1024
	superSize   = 128
	magic       = 0xE0F5E1E2
	slot        = 32 // inodes are numbered by it
	inodeSize   = 64 // of the extended form, the only one that is written
	direntSize  = 12
	maxName     = 255

	layoutPlain  = 0
	layoutInline = 2

	featureCompatChecksum = 1
)

// Kinds of directory entries.
const (
	kindUnknown = iota
	kindRegular
	kindDirectory
	kindCharDevice
	kindBlockDevice
	kindFifo
	kindSocket
	kindSymlink
)
