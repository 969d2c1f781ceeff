package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"sync"
	"testing"
	"time"
)

// The kinds of commit that are told apart, by what was asked for last.
const (
	ofIngest   = "ingest"
	ofRelay    = "relay"
	ofConsumer = "consumer"
	ofRebuild  = "rebuild"
	ofOthers   = "change"
)

// lostCommits chooses the commits that a proxy before the database loses: of each
// kind every so many are lost on their way there, and as many on their way back.
type lostCommits struct {
	prepared *regexp.Regexp

	mu   sync.Mutex
	over bool // nothing is lost any more
	seen map[string]int
	lost map[string]int // by kind and way
}

// loseEach is after how many commits of a kind one is lost.
const loseEach = 5

func newLostCommits(w *world) (x *lostCommits, database string) {
	w.t.Helper()
	x = &lostCommits{seen: map[string]int{}, lost: map[string]int{},
		// A statement's name, and how it begins where it is one of those that are looked for.
		prepared: regexp.MustCompile(`(?s)P.{4}([a-z_0-9]+)\x00(?:(commit)\x00|(WITH mine AS MATERIALIZED \(\s*SELECT c\.partition, s\.fence, s\.was)|\s*(UPDATE consumer_checkpoints c SET position)|\s*(WITH moved AS \()|(SELECT partition, position, epoch))`)}
	p := newProxy(w.t, func() string { return hostOf(w.db) })
	p.commits = x.of
	p.start()
	return x, atHost(w.db, p.addr())
}

// of watches one connection of the service.
func (x *lostCommits) of() loser {
	c := &commitConn{prepared: x.prepared, names: map[string]string{}}
	return func(piece []byte, _ manner) (at int, how manner) {
		if kind := c.commits(piece); kind != "" {
			if how := x.fate(kind); how != passes {
				return 0, how
			}
		}
		return -1, passes
	}
}

// fate says what becomes of a commit.
func (x *lostCommits) fate(kind string) manner {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.seen[kind]++
	way, how := "", passes
	switch x.seen[kind] % (2 * loseEach) {
	case loseEach:
		way, how = kind+" there", losesCommits
	case 0:
		way, how = kind+" back", losesCommitAnswers
	}
	if way == "" || x.over || x.lost[way] >= 4 {
		return passes
	}
	x.lost[way]++
	return how
}

// commitConn knows what was prepared on one connection.
type commitConn struct {
	prepared *regexp.Regexp
	names    map[string]string // kinds of the statements that were prepared
	last     string            // kind of the statement before
}

// commits gives the kind of the commit in a chunk, "" where there is none. Nothing
// is cut in a chunk that prepares the statement: it is the connection's first.
func (c *commitConn) commits(chunk []byte) string {
	for _, found := range c.prepared.FindAllSubmatch(chunk, -1) {
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

// P1, P2: commits of each kind are lost on their way to the database, and on their
// way back, where nobody can know which of the two it was.
func TestP2_CommitsOfEveryKindAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner := w.serve("api")
	w.catalogue(owner)
	lost, database := newLostCommits(w)
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
		lost.mu.Lock()
		defer lost.mu.Unlock()
		return len(lost.lost) == 10, fmt.Sprint(lost.lost, " of ", lost.seen)
	})
	lost.mu.Lock()
	lost.over = true
	t.Logf("lost commits: %v of %v", lost.lost, lost.seen)
	lost.mu.Unlock()
	l.stop()
	w.settle(i, tenants...)
	w.drain()
	w.sameUsage(1, r.Generation)
	if n := w.count(`SELECT count(*) FROM event_log_rows l WHERE topic = 6 AND l.payload::text LIKE '%"lost-%'`); n != 24 {
		t.Errorf("24 features were made by %d events", n)
	}
	w.finish()
}
