package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"testing"
	"time"
)

// The kinds of commit that a commitProxy tells apart, by what was asked for last.
const (
	ofIngest   = "ingest"
	ofRelay    = "relay"
	ofConsumer = "consumer"
	ofRebuild  = "rebuild"
	ofOthers   = "change"
)

// commitProxy stands before the database and cuts connections at COMMIT: of each
// kind every so many are lost on their way there, and as many on their way back.
type commitProxy struct {
	listener net.Listener
	server   string
	prepared *regexp.Regexp
	wait     sync.WaitGroup

	mu    sync.Mutex
	over  bool // nothing is cut any more
	seen  map[string]int
	cuts  map[string]int // by kind and way
	conns []net.Conn
}

// cutEach is after how many commits of a kind one is lost.
const cutEach = 5

func newCommitProxy(w *world) (*commitProxy, string) {
	w.t.Helper()
	at, err := url.Parse(w.db)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &commitProxy{server: at.Host, seen: map[string]int{}, cuts: map[string]int{},
		// A statement's name, and how it begins where it is one of those that are looked for.
		prepared: regexp.MustCompile(`(?s)P.{4}([a-z_0-9]+)\x00(?:(commit)\x00|(WITH mine AS MATERIALIZED \(\s*SELECT c\.partition, s\.fence, s\.was)|\s*(UPDATE consumer_checkpoints c SET position)|\s*(WITH moved AS \()|(SELECT partition, position, epoch))`)}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		w.t.Fatal(err)
	}
	p.wait.Go(p.accept)
	w.t.Cleanup(p.close)
	at.Host = p.listener.Addr().String()
	return p, at.String()
}

func (p *commitProxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *commitProxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		c := &commitConn{p: p, in: in, out: out, names: map[string]string{}}
		p.wait.Go(c.there)
		p.wait.Go(c.back)
	}
}

// fate says what becomes of a commit: "there" and "back" are where it is lost.
func (p *commitProxy) fate(kind string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[kind]++
	way := ""
	switch p.seen[kind] % (2 * cutEach) {
	case cutEach:
		way = "there"
	case 0:
		way = "back"
	}
	if way == "" || p.over || p.cuts[kind+" "+way] >= 4 {
		return ""
	}
	p.cuts[kind+" "+way]++
	return way
}

// commitConn is one connection of the service.
type commitConn struct {
	p       *commitProxy
	in, out net.Conn
	names   map[string]string // kinds of the statements that were prepared
	last    string            // kind of the statement before

	mu   sync.Mutex
	mute bool // nothing comes back any more
}

func (c *commitConn) there() {
	defer c.in.Close()
	defer c.out.Close()
	buffer := make([]byte, 1<<16)
	for {
		n, err := c.in.Read(buffer)
		if kind := c.commits(buffer[:n]); kind != "" {
			switch c.p.fate(kind) {
			case "there":
				return
			case "back":
				c.mu.Lock()
				c.mute = true
				c.mu.Unlock()
			}
		}
		if _, werr := c.out.Write(buffer[:n]); werr != nil || err != nil {
			return
		}
	}
}

// commits gives the kind of the commit in a chunk, "" where there is none. Nothing
// is cut in a chunk that prepares the statement: it is the connection's first.
func (c *commitConn) commits(chunk []byte) string {
	for _, found := range c.p.prepared.FindAllSubmatch(chunk, -1) {
		for n, kind := range []string{ofIngest, ofRelay, ofConsumer, ofRebuild, ofOthers} {
			if found[n+2] != nil {
				c.names[string(found[1])] = kind
			}
		}
	}
	committed := ""
	for name, kind := range c.names {
		if !bytes.Contains(chunk, []byte("\x00"+name+"\x00")) {
			continue
		}
		c.last = kind
		if kind == ofIngest || kind == ofRelay {
			committed = kind
		}
	}
	if bytes.Contains(chunk, []byte("Q\x00\x00\x00\x0bcommit\x00")) {
		committed, c.last = c.last, ofOthers
		if committed != ofConsumer && committed != ofRebuild {
			committed = ofOthers
		}
	}
	return committed
}

func (c *commitConn) back() {
	defer c.in.Close()
	defer c.out.Close()
	buffer := make([]byte, 1<<16)
	for {
		n, err := c.out.Read(buffer)
		c.mu.Lock()
		mute := c.mute
		c.mu.Unlock()
		if mute {
			return // what is answered is done; nobody hears of it
		}
		if _, werr := c.in.Write(buffer[:n]); werr != nil || err != nil {
			return
		}
	}
}

// P1, P2: commits of each kind are lost on their way to the database, and on their
// way back, where nobody can know which of the two it was.
func TestP2_CommitsOfEveryKindAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner := w.serve("api")
	w.catalogue(owner)
	p, database := newCommitProxy(w)
	i := w.serve("", "DATABASE_URL="+database, "METERPLEX_REBUILD_CHUNK=20")
	tenants := w.join(owner, 2)
	w.known(i, tenants)
	l := w.drive(tenants, 2, calm(), func(int) string { return i.url() })
	l.more(200)
	r := w.startRebuild(owner, "usage_aggregates")
	for n := range 24 { // changes, each with its answer kept
		w.insist(w.operator, http.MethodPut, i, fmt.Sprint("/api/v1/features/lost-", n), object{"name": "lost", "type": "METERED", "unit": "each"}, http.StatusCreated)
	}
	w.ready(owner, r.ID)
	within(t, time.Minute, "commits of each kind are lost, both ways", func(context.Context) (bool, string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.cuts) == 10, fmt.Sprint(p.cuts, " of ", p.seen)
	})
	p.mu.Lock()
	p.over = true
	t.Logf("lost commits: %v of %v", maps.Clone(p.cuts), maps.Clone(p.seen))
	p.mu.Unlock()
	l.stop()
	w.settle(i, tenants...)
	w.drain()
	w.sameUsage(1, r.Generation)
	if n := w.count(`SELECT count(*) FROM event_log_rows l WHERE topic = 6 AND l.payload::text LIKE '%"lost-%'`); n != 24 {
		t.Errorf("24 features were made by %d events", n)
	}
	w.finish()
}
