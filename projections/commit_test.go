package projections_test

import (
	"bytes"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections/consume"
)

// commitProxy is a proxy between client and server. Armed, it closes the connection at
// the next COMMIT: before the server receives it, or after the server answered.
type commitProxy struct {
	net.Listener
	server string
	before atomic.Bool
	after  atomic.Bool
	cuts   atomic.Int32
	wg     sync.WaitGroup
}

var commitMessage = []byte("Q\x00\x00\x00\x0bcommit\x00")

// serve accepts connections until the listener closes.
func (c *commitProxy) serve() {
	for {
		client, err := c.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", c.server)
		if err != nil {
			client.Close()
			continue
		}
		mute := new(atomic.Bool)
		c.wg.Go(func() { c.upstream(client, server, mute) })
		c.wg.Go(func() { c.downstream(client, server, mute) })
	}
}

func (c *commitProxy) upstream(client, server net.Conn, mute *atomic.Bool) {
	defer server.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if bytes.Contains(buf[:n], commitMessage) {
			if c.before.CompareAndSwap(true, false) {
				c.cuts.Add(1)
				client.Close()
				return
			}
			mute.Store(c.after.CompareAndSwap(true, false))
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *commitProxy) downstream(client, server net.Conn, mute *atomic.Bool) {
	defer client.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := server.Read(buf)
		if mute.Load() && n > 0 {
			c.cuts.Add(1)
			return // the commit is done; its answer is lost
		}
		if _, werr := client.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// throughCommitProxy routes a runner's connections through a cutter.
func (w *logFixture) throughCommitProxy(r *consume.Runner) *commitProxy {
	w.Helper()
	u, err := url.Parse(w.url)
	w.must(err)
	c := &commitProxy{server: u.Host}
	c.Listener, err = net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	go c.serve()
	u.Host = c.Addr().String()
	pool, err := postgres.Open(w.Context(), postgres.Config{URL: u.String(), ApplicationName: "cut"})
	w.must(err)
	r.Pool = pool
	w.Cleanup(func() {
		pool.Close()
		c.Close()
		c.wg.Wait()
	})
	return c
}

// Whether the commit or only its answer was lost, the batch is redelivered and counts once.
func TestP2_CommitWithoutAnAnswerCountsOnce(t *testing.T) {
	for _, lost := range []string{"commit", "answer"} {
		t.Run(lost, func(t *testing.T) {
			w := newLogFixture(t)
			tenant := tenantIn(6)
			w.verdicts(tenant, "calls", 4)
			r, seen := w.aggregator(nil)
			c := w.throughCommitProxy(r)
			records := w.topic(events.TopicUsageValidated, 6, 0)
			c.before.Store(lost == "commit")
			c.after.Store(lost == "answer")
			err := r.Process(t.Context(), records)
			if !errors.Is(err, consume.ErrCommitUnknown) || c.cuts.Load() != 1 {
				t.Fatalf("a commit without an answer returned %v, after %d cuts", err, c.cuts.Load())
			}
			w.process(r, records)
			if got := w.applied(tenant, "calls"); got != 4 {
				t.Errorf("applied %d, want 4", got)
			}
			if durable := lost == "answer"; (seen.duplicates == 4) != durable {
				t.Errorf("told %+v", seen)
			}
		})
	}
}
