package e2e

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// proxyMode is how a proxy treats the bytes that pass.
type proxyMode int

const (
	passes             proxyMode = iota
	cuts                         // connections end, new ones too
	stalls                       // bytes are held back, not lost
	halfOpen                     // bytes vanish in both directions, connections stay open
	dropsAnswers                 // requests arrive, answers vanish
	trickles                     // one byte at a time
	losesCommits                 // COMMIT never arrives, and the connection ends
	losesCommitAnswers           // COMMIT arrives, its answer does not, and the connection ends
)

// proxy forwards connections between two processes and injects faults by its mode.
// codec may be set before it starts.
type proxy struct {
	listener net.Listener
	target   func() string // host:port, "" if there is no target
	codec    func() (forth, back reader)

	mu      sync.Mutex
	manner  proxyMode
	changed chan struct{} // closed when the mode changes
	links   map[*link]struct{}
	wait    sync.WaitGroup
	hits    atomic.Int64 // faults injected since the mode was set
}

// reader returns the next piece of a stream.
type reader func(from io.Reader) ([]byte, error)

// link is one connection through the proxy.
type link struct {
	in, out net.Conn
	done    chan struct{}
	once    sync.Once
	lost    atomic.Bool // bytes of it are lost: it cannot recover
	doomed  atomic.Bool // its COMMIT passed: its answers are dropped
}

func (l *link) end() {
	l.once.Do(func() {
		close(l.done)
		_ = l.in.Close()
		_ = l.out.Close()
	})
}

func newProxy(t testing.TB, target func() string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	p := &proxy{listener: listener, target: target, codec: rawPieces, changed: make(chan struct{}), links: map[*link]struct{}{}}
	t.Cleanup(p.close)
	return p
}

func (p *proxy) start() { p.wait.Go(p.accept) }

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) url() string { return "http://" + p.addr() }

// set changes the mode. When the mode becomes passes, a connection that has lost bytes
// ends, as its peer would end it.
func (p *proxy) set(m proxyMode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.manner = m
	if m != passes {
		p.hits.Store(0)
	}
	close(p.changed)
	p.changed = make(chan struct{})
	for l := range p.links {
		if m == cuts {
			p.hits.Add(1)
			l.end()
		}
		if m == passes && l.lost.Load() {
			l.end()
		}
	}
}

// lost counts the open connections that have lost bytes.
func (p *proxy) lost() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.lost.Load() {
			n++
		}
	}
	return n
}

func (p *proxy) state() (proxyMode, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.manner, p.changed
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.set(cuts)
	p.wait.Wait()
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wait.Go(func() { p.join(in) })
	}
}

func (p *proxy) join(in net.Conn) {
	to := p.target()
	if m, _ := p.state(); m == cuts || to == "" {
		p.hits.Add(1)
		_ = in.Close()
		return
	}
	out, err := net.DialTimeout("tcp", to, 5*time.Second)
	if err != nil {
		_ = in.Close()
		return
	}
	l := &link{in: in, out: out, done: make(chan struct{})}
	p.mu.Lock()
	p.links[l] = struct{}{}
	cut := p.manner == cuts
	p.mu.Unlock()
	if cut {
		l.end()
	}
	forth, back := p.codec()
	p.wait.Go(func() { p.pump(l, in, out, forth, true) })
	p.pump(l, out, in, back, false)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *proxy) pump(l *link, from, to net.Conn, next reader, forth bool) {
	defer l.end()
	for {
		piece, err := next(from)
		if len(piece) > 0 && !p.carry(l, to, piece, forth) || err != nil {
			return
		}
	}
}

// carry writes a piece by the current mode. It returns false when the link is over.
func (p *proxy) carry(l *link, to net.Conn, piece []byte, forth bool) bool {
	for len(piece) > 0 {
		m, changed := p.state()
		switch {
		case l.doomed.Load() && !forth:
			return true
		case m == cuts:
			return false
		case m == stalls:
			p.hits.Add(1)
			select {
			case <-changed:
			case <-l.done:
				return false
			}
			continue
		case m == halfOpen || m == dropsAnswers && !forth:
			p.hits.Add(1)
			l.lost.Store(true)
			return true
		case m == trickles:
			p.hits.Add(1)
			if _, err := to.Write(piece[:1]); err != nil {
				return false
			}
			piece = piece[1:]
			select {
			case <-changed:
			case <-l.done:
				return false
			case <-time.After(2 * time.Millisecond):
			}
			continue
		}
		if at := commitAt(piece); forth && at >= 0 && (m == losesCommits || m == losesCommitAnswers) {
			p.loseCommit(l, to, piece, at, m)
			return false
		}
		_, err := to.Write(piece)
		return err == nil
	}
	return true
}

// answerTime is enough to make a COMMIT durable before its connection ends.
const answerTime = 200 * time.Millisecond

func (p *proxy) loseCommit(l *link, to net.Conn, piece []byte, at int, m proxyMode) {
	p.hits.Add(1)
	if m == losesCommits {
		_, _ = to.Write(piece[:at])
		return
	}
	l.doomed.Store(true)
	if _, err := to.Write(piece); err == nil {
		time.Sleep(answerTime)
	}
}

// commitAt returns the offset of a PostgreSQL message that commits, or -1: the simple
// query, or the Bind of the prepared statement that the log's writers use.
func commitAt(piece []byte) int {
	if at := bytes.Index(piece, []byte("Q\x00\x00\x00\x0bcommit\x00")); at >= 0 {
		return at
	}
	at := bytes.Index(piece, []byte("\x00end_append\x00"))
	if at < 5 || piece[at-5] != 'B' {
		return -1
	}
	return at - 5
}

func rawPieces() (forth, back reader) { return newRaw(), newRaw() }

func newRaw() reader {
	buffer := make([]byte, 64<<10)
	return func(from io.Reader) ([]byte, error) {
		n, err := from.Read(buffer)
		return buffer[:n], err
	}
}
