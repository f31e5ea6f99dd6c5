// Package kernel keeps the Linux kernels that the vm engine boots.
//
// A kernel comes from a Debian package, which is fetched with apt where there
// is apt, and else from a mirror with a pinned digest; or it is a file that the
// user names. It is unpacked here, in Go: dpkg is not needed. Each kernel has a
// folder of its own below the store:
//
//	<name>/kernel.json    what it is (Info)
//	<name>/vmlinuz        the kernel, as QEMU boots it
//	<name>/modules/       its modules, uncompressed, with modules.dep and modules.alias
//	<name>/modules.erofs  the same as an image, for boxes that need more of them
//	<name>/initramfs-*    made at the first boot with an agent
//	selected              the name of the kernel that new boots use
//	lock                  held while a kernel is added or removed
//
// A folder appears in one step, whole. Reading needs no lock.
package kernel
