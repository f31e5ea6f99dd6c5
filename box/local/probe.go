package local

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/hutch-sandbox/hutch/internal/boxdir"
	"github.com/hutch-sandbox/hutch/internal/helper"
)

// probeCache keeps what the helper found out, as long as neither the helper
// nor the host's boot nor the user changes.
type probeCache struct{ path string }

func (d *driver) probeCache() probeCache {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	fi, serr := os.Stat(d.helper)
	if err != nil || serr != nil {
		return probeCache{}
	}
	ino := uint64(0)
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		ino = st.Ino
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %d %d %d %s", strings.TrimSpace(string(boot)), d.helper,
		fi.Size(), fi.ModTime().UnixNano(), ino, os.Geteuid(), helper.Version()))
	return probeCache{d.home.Path("cache", "probe-"+hex.EncodeToString(key[:8])+".json")}
}

func (c probeCache) load() (*helper.ProbeAnswer, bool) {
	if c.path == "" {
		return nil, false
	}
	data, err := os.ReadFile(c.path)
	var a helper.ProbeAnswer
	if err != nil || json.Unmarshal(data, &a) != nil {
		return nil, false
	}
	for _, e := range a.Engines {
		if e.Default {
			return &a, true
		}
	}
	return nil, false // perhaps it has been mended
}

// store is best effort: without it the next process asks again.
func (c probeCache) store(a *helper.ProbeAnswer) {
	if c.path == "" {
		return
	}
	if data, err := json.Marshal(a); err == nil {
		_ = boxdir.WriteFile(c.path, data, 0o600)
	}
}
