package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/boxdir"
)

// workshop makes spares that are nothing but a name.
type workshop struct {
	mu    sync.Mutex        // guards those below
	made  int               // ever, or tried to
	there map[string]string // images of the spares that there are, by id
	fail  bool
	slow  time.Duration // that a boot takes
}

func (w *workshop) bootSpare(ctx context.Context, like boxdir.Record) (string, *session, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made++
	id := fmt.Sprint(w.made)
	w.mu.Unlock()
	var err error
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(w.slow):
	}
	w.mu.Lock()
	if err != nil || w.fail {
		return "", nil, errors.Join(err, errors.New("it does not boot"))
	}
	w.there[id] = like.Spec.Image
	return id, &session{ended: make(chan struct{})}, nil
}

func (w *workshop) endSpare(_ context.Context, id string, _ *session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.there, id)
}

// yard is a pool with such spares, and a program that creates boxes.
type yard struct {
	*testing.T
	w *workshop
	p *pool
}

// inYard runs f on a clock of its own, which stands still while anybody works.
func inYard(t *testing.T, size int, f func(y *yard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &workshop{there: map[string]string{}, slow: time.Second}
		y := &yard{T: t, w: w, p: newPool(t.Context(), w, size)}
		f(y)
		y.p.close()
		if len(w.there) > 0 {
			t.Errorf("after close there are %v", w.there)
		}
	})
}

func boxOf(image string) boxdir.Record {
	return boxdir.Record{Isolation: box.IsolationKernel, Spec: box.Spec{Image: image}}
}

// create is a Create of a box and its boot; adopted is whether a spare became
// the box.
func (y *yard) create(rec boxdir.Record) (adopted bool) {
	sp, adopted := y.p.take(y.p.asked(rec))
	if adopted {
		y.w.endSpare(y.Context(), sp.id, sp.s) // it is none any more
		y.p.taken()
	} else {
		booted := y.p.booting()
		time.Sleep(time.Second)
		booted(true)
	}
	return adopted
}

// want looks at the spares that there are once nobody works any more, ten
// seconds later.
func (y *yard) want(when string, images ...string) {
	y.Helper()
	time.Sleep(10 * time.Second)
	synctest.Wait()
	y.w.mu.Lock()
	defer y.w.mu.Unlock()
	if diff := cmp.Diff(images, slices.Sorted(maps.Values(y.w.there))); diff != "" {
		y.Errorf("spares %s (-want +got):\n%s", when, diff)
	}
	if n := y.p.count(); n != len(images) {
		y.Errorf("%s the pool counts %d spares, want %d", when, n, len(images))
	}
}

func TestPoolBeginsWithTheSecond(t *testing.T) {
	inYard(t, 0, func(y *yard) {
		y.want("after Open")
		y.create(boxOf("a"))
		y.want("after the first Create")
		y.create(boxOf("a"))
		y.want("after the second", "a")
		if !y.create(boxOf("a")) {
			y.Error("the third box was not booted ahead")
		}
		y.want("after the third", "a")
	})
}

func TestPoolEndsUnused(t *testing.T) {
	inYard(t, 0, func(y *yard) {
		y.create(boxOf("a"))
		time.Sleep(spareIdle + time.Second)
		y.create(boxOf("a"))
		y.want("after two Creates far apart")
		y.create(boxOf("a"))
		y.want("after one more", "a")
		time.Sleep(spareIdle - 20*time.Second)
		if !y.create(boxOf("a")) {
			y.Error("the spare ended early")
		}
		y.want("after it was used", "a")
		time.Sleep(spareIdle)
		y.want("unused for a minute")
		if y.create(boxOf("a")) {
			y.Error("a spare was there again")
		}
		y.want("after one Create since")
		y.create(boxOf("a"))
		y.want("after the second since", "a")
	})
}

func TestPoolOtherKinds(t *testing.T) {
	inYard(t, 0, func(y *yard) {
		for range 3 {
			y.create(boxOf("a"))
			y.create(boxOf("b"))
		}
		y.want("when kinds alternate")
		y.create(boxOf("b"))
		y.want("after two in a row", "b")
		y.create(boxOf("a"))
		y.want("after one of another", "b")
		if !y.create(boxOf("b")) {
			y.Error("it was not booted ahead")
		}
		y.create(boxOf("a"))
		y.create(boxOf("a"))
		y.want("after two of another", "a")
	})
}

func TestPoolNotWorthIt(t *testing.T) {
	emulated, folder, volume := boxOf("a"), boxOf(""), boxOf("a")
	emulated.Isolation = box.IsolationEmulation
	folder.Spec.RootFS = "/tree"
	volume.Spec.Volumes = []box.Volume{{Name: "v", Target: "/v"}}
	for what, rec := range map[string]boxdir.Record{"an emulated machine": emulated, "a folder of the host": folder, "a box with a volume": volume} {
		inYard(t, 0, func(y *yard) {
			for range 3 {
				y.create(rec)
			}
			y.want("of " + what)
		})
	}
	inYard(t, 1, func(y *yard) {
		y.create(emulated)
		y.want("of an emulated machine that was asked for", "a")
	})
}

// A box that somebody waits for comes first.
func TestPoolWaitsForBoots(t *testing.T) {
	inYard(t, 0, func(y *yard) {
		y.create(boxOf("a"))
		var booted []func(bool)
		for range 3 {
			y.p.asked(boxOf("a"))
			y.want("before a boot")
			booted = append(booted, y.p.booting())
			y.want("during a boot")
		}
		booted[0](true)
		booted[1](false)
		y.want("beside a boot")
		booted[2](false)
		y.want("after all", "a")
	})
}

// What cannot boot is not tried for ever.
func TestPoolFailure(t *testing.T) {
	inYard(t, 0, func(y *yard) {
		y.w.fail = true
		y.create(boxOf("a"))
		y.create(boxOf("a"))
		y.want("that fail")
		y.p.booting()(false)
		y.want("that fail, after a boot that did")
		if y.w.made != 1 {
			y.Errorf("%d were tried, want 1", y.w.made)
		}
		y.w.fail = false
		y.create(boxOf("a"))
		y.want("that boot again", "a")
	})
}

func TestPoolFixed(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		y.want("after Open")
		y.create(boxOf("a"))
		y.want("after the first Create", "a", "a", "a")
		time.Sleep(time.Hour)
		y.want("an hour later", "a", "a", "a")
		y.create(boxOf("b"))
		y.want("after another kind", "b", "b", "b")
		if !y.create(boxOf("b")) {
			y.Error("it was not booted ahead")
		}
		y.want("after one was used", "b", "b", "b")
	})
}

func TestPoolDeadSpare(t *testing.T) {
	inYard(t, 0, func(y *yard) {
		y.create(boxOf("a"))
		y.create(boxOf("a"))
		y.want("after two Creates", "a")
		y.p.mu.Lock()
		close(y.p.ready[0].s.ended)
		y.p.mu.Unlock()
		if y.create(boxOf("a")) {
			y.Error("a dead box was handed out")
		}
		y.want("after the Create that met it", "a")
	})
}

func TestPoolPutBack(t *testing.T) {
	inYard(t, 0, func(y *yard) {
		y.create(boxOf("a"))
		y.create(boxOf("a"))
		y.want("after two Creates", "a")
		sp, ok := y.p.take(y.p.asked(boxOf("a")))
		if !ok {
			y.Fatal("there is none")
		}
		y.p.put(sp, true)
		y.want("after it was put back", "a")
		if sp, ok = y.p.take(y.p.asked(boxOf("a"))); !ok {
			y.Fatal("there is none")
		}
		y.p.put(sp, false)
		y.want("after one that is no good was put back")
		y.create(boxOf("a"))
		y.want("after the next Create", "a")
		if sp, ok = y.p.take(y.p.asked(boxOf("a"))); !ok {
			y.Fatal("there is none")
		}
		y.p.close()
		y.p.put(sp, true)
		y.want("put back after close")
	})
}

// While a boot is under way too, nothing is left.
func TestPoolCloseAndGiveUp(t *testing.T) {
	for _, ready := range []bool{true, false} {
		for what, end := range map[string]func(y *yard){
			"close":  func(y *yard) { y.p.close() },
			"giveUp": func(y *yard) { _, _ = y.p.giveUp(y.Context()) },
		} {
			inYard(t, 0, func(y *yard) {
				if !ready {
					y.w.slow = time.Hour
				}
				y.create(boxOf("a"))
				y.create(boxOf("a"))
				time.Sleep(10 * time.Second)
				began := time.Now()
				end(y)
				if took := time.Since(began); took > 0 {
					y.Errorf("%s waited %s", what, took)
				}
				if len(y.w.there) > 0 {
					y.Errorf("after %s there are %v", what, y.w.there)
				}
				y.w.slow = time.Second
				y.create(boxOf("a"))
				y.want("after " + what + " and one Create")
				if what == "close" {
					return
				}
				y.create(boxOf("a"))
				y.want("after giveUp and two Creates", "a")
			})
		}
	}
}

// Whatever happens at once, the spares are of a kind that was asked for, no
// more than one, and gone in the end.
func TestPoolAllAtOnce(t *testing.T) {
	inYard(t, 0, func(y *yard) {
		y.w.slow = time.Second / 2
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				for i := range 50 {
					y.create(boxOf([]string{"a", "b"}[i/5%2]))
					time.Sleep(time.Duration(i*n) * time.Millisecond * 37)
					if n == 0 && i%7 == 0 {
						if _, err := y.p.giveUp(y.Context()); err != nil {
							y.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		y.w.mu.Lock()
		defer y.w.mu.Unlock()
		for id, image := range y.w.there {
			if image == "" {
				y.Errorf("spare %s is of no kind", id)
			}
		}
		if len(y.w.there) > 1 {
			y.Errorf("there are %v", y.w.there)
		}
	})
}

// No pool is a pool that never has any.
func TestNoPool(t *testing.T) {
	p := newPool(t.Context(), &workshop{}, -1)
	if p != nil {
		t.Fatal("a negative Warm has a pool")
	}
	for range 3 {
		kind := p.asked(boxOf("a"))
		if _, ok := p.take(kind); ok || kind != "" {
			t.Error("there is a spare")
		}
		p.booting()(true)
	}
	if n := p.count(); n != 0 {
		t.Errorf("%d spares", n)
	}
	if had, err := p.giveUp(t.Context()); had || err != nil {
		t.Errorf("giveUp: %v, %v", had, err)
	}
	p.close()
}
