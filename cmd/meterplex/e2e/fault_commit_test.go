package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// The kinds of commit, distinguished by the statements before them.
const (
	ofIngest   = "ingest"
	ofRelay    = "relay"
	ofConsumer = "consumer"
	ofRebuild  = "rebuild"
	ofOthers   = "change"
)

// lostCommits chooses the commits that a proxy before the database loses: of each kind,
// one in loseEach, alternately the request and the answer, at most 4 of each.
type lostCommits struct {
	prepared *regexp.Regexp

	mu   sync.Mutex
	over bool // no further commits are lost
	seen map[string]int
	lost map[string]int // by kind and direction
}

// loseEach: every fifth commit of a kind is lost.
const loseEach = 5

func newLostCommits(w *deployment) (x *lostCommits, database string) {
	w.t.Helper()
	x = &lostCommits{seen: map[string]int{}, lost: map[string]int{},
		// A statement's name, and the beginning of its text if it is one of the watched kinds.
		prepared: regexp.MustCompile(`(?s)P.{4}([a-z_0-9]+)\x00(?:(commit)\x00|(WITH mine AS MATERIALIZED \(\s*SELECT c\.partition, s\.fence, s\.was)|\s*(UPDATE consumer_checkpoints c SET position)|\s*(UPDATE rebuild_units SET events)|(SELECT partition, position, epoch))`)}
	p := newProxy(w.t, func() string { return hostOf(w.db) })
	p.commits = x.filter
	p.start()
	return x, atHost(w.db, p.addr())
}

// filter watches one connection of the service. It returns the commit filter that the proxy asks about each chunk.
func (x *lostCommits) filter() commitFilter {
	c := &commitConn{prepared: x.prepared, names: map[string]string{}}
	return func(piece []byte, _ proxyMode) (at int, how proxyMode) {
		if kind := c.commits(piece); kind != "" {
			if how := x.choose(kind); how != passes {
				return 0, how
			}
		}
		return -1, passes
	}
}

// choose decides whether a commit is lost, and in which direction.
func (x *lostCommits) choose(kind string) proxyMode {
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

// commitConn holds the statements prepared on one connection.
type commitConn struct {
	prepared *regexp.Regexp
	names    map[string]string // kinds of the prepared statements
	last     string            // kind of the previous statement
}

// commits returns the kind of the commit in a chunk, or "". A chunk that prepares the
// statement is never cut: it is the connection's first.
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

// P1, P2: commits of each kind are lost on their way to the database or on their way back.
// The service cannot tell these two cases apart.
func TestP2_CommitsOfEveryKindAreLost(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	owner := w.serve("api")
	w.catalogue(owner)
	lost, database := newLostCommits(w)
	i := w.serve("", "DATABASE_URL="+database, "METERPLEX_REBUILD_CHUNK=20")
	tenants := w.createTenants(owner, 2)
	w.awaitKeys(i, tenants)
	l := w.startLoad(tenants, 2, lightTraffic(), func(int) string { return i.url() })
	l.awaitMore(200)
	r := w.startRebuild(owner, "usage_aggregates")
	for n := range 24 { // changes with an Idempotency-Key
		w.retryUntilAnswered(w.operator, http.MethodPut, i, fmt.Sprint("/api/v1/features/lost-", n), object{"name": "lost", "type": "METERED", "unit": "each"}, http.StatusCreated)
	}
	w.ready(owner, r.ID)
	within(t, "commits of each kind are lost, both ways", func(context.Context) (bool, string) {
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
	w.checkSameUsage(1, r.Generation)
	if n := w.count(`SELECT count(*) FROM event_log_rows l WHERE topic = 6 AND l.payload::text LIKE '%"lost-%'`); n != 24 {
		t.Errorf("24 features were created by %d events", n)
	}
	w.finish()
}
