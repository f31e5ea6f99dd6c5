package layer

import "context"

// Helper does the two things that touch what strangers made: it unpacks layers
// and removes unpacked trees. [Here] does them in the calling process;
// what users run does them in a process that confines itself and cannot touch
// anything else.
type Helper interface {
	// Unpack is [Unpack], wherever it runs.
	Unpack(ctx context.Context, job Job) (Result, error)
	// Remove is [RemoveAll], in the same user namespace as Unpack.
	Remove(ctx context.Context, dir string) error
}

// Here is the Helper that works in the calling process, with its identity. It
// ignores Job.Confine, which would make the process useless.
type Here struct{}

// Unpack implements [Helper].
func (Here) Unpack(ctx context.Context, job Job) (Result, error) {
	job.Confine = false
	return Unpack(ctx, job)
}

// Remove implements [Helper].
func (Here) Remove(_ context.Context, dir string) error { return RemoveAll(dir) }
