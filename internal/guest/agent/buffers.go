//go:build linux

package agent

import "sync"

// bufferPool hands out buffers of one size.
type bufferPool struct {
	pool sync.Pool
}

func newBufferPool(size int) *bufferPool {
	return &bufferPool{sync.Pool{New: func() any { b := make([]byte, size); return &b }}}
}

func (p *bufferPool) get() *[]byte  { return p.pool.Get().(*[]byte) }
func (p *bufferPool) put(b *[]byte) { p.pool.Put(b) }

var (
	pumpBuffers = newBufferPool(64 << 10)  // a pipe holds as much
	fileBuffers = newBufferPool(256 << 10) // a chunk of a file
)
