package console

import (
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/meterplex/meterplex/commands"
)

// confirmEvery is how often the sessions and the keys of the streams are confirmed, so that a stream ends within 1 s of them.
const confirmEvery = 400 * time.Millisecond

// watch ends the streams of an instance once their session has ended or their key is refused: one read confirms the sessions of all. It runs while
// there are streams.
type watch struct {
	mu      sync.Mutex
	streams map[*watchedStream]struct{}
	stop    context.CancelFunc
	stopped chan struct{} // closed once the run has ended
}

// watchedStream is a stream of a visitor, with the function that ends it.
type watchedStream struct {
	visitor visitor
	end     func()
}

// join adds a stream, and returns the function that removes it. The last one that leaves ends the run.
func (w *watch) join(c *Console, s *watchedStream) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.streams) == 0 {
		ctx, stop := context.WithCancel(context.Background())
		w.streams, w.stop, w.stopped = map[*watchedStream]struct{}{}, stop, make(chan struct{})
		go w.run(ctx, c, w.stopped)
	}
	w.streams[s] = struct{}{}
	return func() { w.leave(s) }
}

func (w *watch) leave(s *watchedStream) {
	w.mu.Lock()
	delete(w.streams, s)
	last, stop, stopped := len(w.streams) == 0, w.stop, w.stopped
	w.mu.Unlock()
	if last {
		stop()
		<-stopped
	}
}

func (w *watch) run(ctx context.Context, c *Console, stopped chan struct{}) {
	defer close(stopped)
	tick := time.NewTicker(confirmEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Shutdown:
			for _, s := range w.present() {
				s.end()
			}
			return
		case <-tick.C:
		}
		for _, s := range c.signedOut(ctx, w.present()) {
			s.end()
		}
	}
}

func (w *watch) present() (all []*watchedStream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.streams {
		all = append(all, s)
	}
	return all
}

// signedOut returns the streams whose session has ended or whose key is refused. If the database does not answer, the API ends them.
func (c *Console) signedOut(ctx context.Context, streams []*watchedStream) (ended []*watchedStream) {
	ctx, cancel := context.WithTimeout(ctx, sessionTime)
	defer cancel()
	bySession := map[[sha256.Size]byte][]*watchedStream{}
	for _, s := range streams {
		token := sha256.Sum256(s.visitor.token[:])
		bySession[token] = append(bySession[token], s)
	}
	sessions, err := c.Sessions.Sessions(ctx, slices.Collect(maps.Keys(bySession)))
	if err != nil {
		return nil
	}
	for token, of := range bySession {
		var session *commands.ConsoleSession
		if found, is := sessions[token]; is {
			session = &found
		}
		if c.admit(ctx, &of[0].visitor, session) == errSignedOut {
			ended = append(ended, of...)
		}
	}
	return ended
}
