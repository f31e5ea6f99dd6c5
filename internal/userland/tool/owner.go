package tool

import (
	"io/fs"
	"os"
	"syscall"
)

// KeepOwner gives f the owner of st as far as this process may.
func KeepOwner(f *os.File, st fs.FileInfo) {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(sys.Uid), int(sys.Gid))
	}
}
