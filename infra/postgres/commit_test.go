package postgres

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
)

// cutter is a proxy before the database that cuts connections at COMMIT.
type cutter struct {
	listener net.Listener
	server   string
	answer   atomic.Int32 // number of answers to COMMIT to drop: the COMMIT is durable, the client gets no answer
	request  atomic.Int32 // number of COMMITs to drop: they never happen
	reached  atomic.Int32
	wg       sync.WaitGroup
}

func newCutter(t *testing.T, database string) (*cutter, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{server: u.Host}
	if c.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c.wg.Go(c.accept)
	t.Cleanup(func() { c.listener.Close(); c.wg.Wait() })
	u.Host = c.listener.Addr().String()
	return c, u.String()
}

func (c *cutter) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", c.server)
		if err != nil {
			client.Close()
			continue
		}
		c.wg.Go(func() { c.pass(server, client, c.isRequest(), &c.request) })
		c.wg.Go(func() { c.pass(client, server, isAnswer, &c.answer) })
	}
}

// pass copies until a chunk is to be cut; then both ends are closed.
func (c *cutter) pass(to, from net.Conn, cuts func([]byte) bool, armed *atomic.Int32) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if cuts(buf[:n]) && armed.Load() > 0 {
			armed.Add(-1)
			c.reached.Add(1)
			return
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

func isAnswer(chunk []byte) bool { return bytes.Contains(chunk, []byte("COMMIT\x00")) }

// isRequest knows a COMMIT by its text, or by the name it was prepared under.
func (c *cutter) isRequest() func([]byte) bool {
	var name []byte
	return func(chunk []byte) bool {
		if at := bytes.Index(chunk, []byte("\x00commit\x00")); at >= 0 {
			start := bytes.LastIndexByte(chunk[:at], 0) + 2 // behind the last byte of the message's length
			name = append([]byte{0}, append(bytes.Clone(chunk[start:at]), 0)...)
			return false
		}
		return name != nil && bytes.Contains(chunk, name)
	}
}

func TestP1_AnAnswerToCommitThatIsLostIsFoundOut(t *testing.T) {
	database := localtest.Database(t)
	if _, err := Migrate(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	for name, arm := range map[string]func(*cutter) *atomic.Int32{
		"answer lost":  func(c *cutter) *atomic.Int32 { return &c.answer },
		"request lost": func(c *cutter) *atomic.Int32 { return &c.request },
	} {
		t.Run(name, func(t *testing.T) {
			c, proxied := newCutter(t, database)
			l, pool := openLogAt(t, proxied)
			tenant := uuid.Must(uuid.NewV7())
			submit(t, l, tenant, usageEvent(tenant, "warm", 1)) // origins and statements are known
			for round := range 5 {
				before := c.reached.Load()
				arm(c).Store(int32(1 + round%2)) // the second look may be cut, too
				places := submit(t, l, tenant, usageEvent(tenant, fmt.Sprint("a", round), 1), usageEvent(tenant, fmt.Sprint("b", round), 1))
				if places[0].Status != commands.Appended || places[1].Status != commands.Appended {
					t.Fatalf("round %d: %v", round, places)
				}
				if c.reached.Load() == before {
					t.Fatalf("round %d: no COMMIT was cut", round)
				}
				again := submit(t, l, tenant, usageEvent(tenant, fmt.Sprint("a", round), 1))
				if again[0].Status != commands.Duplicate || again[0].Position != places[0].Position {
					t.Fatalf("round %d: sent again: %v, first %v", round, again, places)
				}
			}
			if n := count(t, pool, `SELECT count(*) FROM event_log WHERE tenant_id = $1`, tenant); n != 11 {
				t.Fatalf("%d events for 11", n)
			}
			checkDense(t, pool)
		})
	}
}

func TestP1_AChangeWhoseCommitHadNoAnswerIsMadeOnce(t *testing.T) {
	database := localtest.Database(t)
	if _, err := Migrate(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	c, proxied := newCutter(t, database)
	l, pool := openLogAt(t, proxied)
	catalogue := &commands.Catalogue{Store: l, Now: time.Now, NewID: func() uuid.UUID { return uuid.Must(uuid.NewV7()) }}
	for round := range 3 {
		c.answer.Store(1)
		if _, err := catalogue.CreateTenant(t.Context(), commands.Request{By: commands.Caller{}}, commands.CreateTenant{Name: "A", Class: "small"}); err != nil {
			t.Fatal(err)
		}
		if c.reached.Load() != int32(round+1) {
			t.Fatalf("round %d: no COMMIT was cut", round)
		}
		if n := count(t, pool, `SELECT count(*) FROM event_log WHERE subject = $1`, events.TenantCreated); n != round+1 {
			t.Fatalf("%d events tell of %d new tenants", n, round+1)
		}
	}
}

func TestP1_AWholeGroupThatFindsItselfInTheLogWasAppended(t *testing.T) {
	// The second attempt may find all events recorded, and write no rows.
	l, _, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	s := usageEvent(tenant, "a", 1)
	first := submit(t, l, tenant, s)
	again := submit(t, l, tenant, s) // the same EventID: ours, of a commit that was not answered
	if again[0] != first[0] {
		t.Fatalf("%v, then %v", first, again)
	}
}

func TestP1_SubmitSurvivesTerminatedBackends(t *testing.T) {
	l, pool, database := openLog(t)
	owner, err := OwnerDB(database)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	tenant := uuid.Must(uuid.NewV7())
	stop := make(chan struct{})
	var killed, stored atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for at, kills := int64(0), int64(0); ; {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
			}
			if now := stored.Load(); now != at {
				at, kills = now, 0
			}
			// If a transaction took longer than the pause, none would ever pass.
			if kills == 3 || killed.Load() >= 60 {
				continue
			}
			if r, err := owner.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle' LIMIT 1`); err == nil {
				n, _ := r.RowsAffected()
				killed.Add(n)
				kills += n
			}
		}
	}()
	for n := 0; n < 300 || (killed.Load() == 0 && n < 20_000); n++ {
		if p := submit(t, l, tenant, usageEvent(tenant, fmt.Sprint("e", n), 1)); p[0].Status != commands.Appended {
			t.Fatalf("event %d: %v", n, p)
		}
		stored.Add(1)
	}
	close(stop)
	<-done
	if killed.Load() == 0 {
		t.Fatal("no backend was terminated")
	}
	t.Logf("%d backends terminated", killed.Load())
	pool.Reset() // the last of them may lie there, dead
	checkDense(t, pool)
}
