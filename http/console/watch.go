package console

import (
	"context"
	"crypto/sha256"
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
	known := map[[sha256.Size]byte]bool{}
	tokens := make([][sha256.Size]byte, 0, len(streams))
	for _, s := range streams {
		if token := sha256.Sum256(s.visitor.token[:]); !known[token] {
			known[token], tokens = true, append(tokens, token)
		}
	}
	sessions, err := c.Sessions.Sessions(ctx, tokens)
	if err != nil {
		return nil
	}
	refused := map[[sha256.Size]byte]bool{} // by the token: several streams may be of one session
	for _, s := range streams {
		token := sha256.Sum256(s.visitor.token[:])
		out, done := refused[token]
		if !done {
			var session *commands.ConsoleSession
			if found, is := sessions[token]; is {
				session = &found
			}
			out = c.admit(ctx, &s.visitor, session) == errSignedOut
			refused[token] = out
		}
		if out {
			ended = append(ended, s)
		}
	}
	return ended
}
