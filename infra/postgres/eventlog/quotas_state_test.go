package eventlog

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// changingGrants are grants that a test changes at each read behind the locks.
type changingGrants struct {
	grants
	reads  atomic.Int32
	change func(read int32, g *grants)
}

func (c *changingGrants) Of(ctx context.Context, query Query, tenants []uuid.UUID,
	at []events.InlineStretch) (map[uuid.UUID]domain.TenantHistory, error) {
	if n := c.reads.Add(1); c.change != nil {
		c.change(n, &c.grants)
	}
	return c.grants.Of(ctx, query, tenants, at)
}

func quotasOn(l *Log, now func() time.Time) *metering.Quotas {
	return &metering.Quotas{Log: l, Now: now, NewID: func(time.Time) uuid.UUID { return uuid.Must(uuid.NewV7()) }}
}

func callerOf(tenant uuid.UUID) commands.Caller {
	return commands.Caller{TenantID: tenant, KeyID: tenant, Residency: events.ResidencyUnspecified}
}

// A group whose COMMIT was lost is decided again from the beginning: a request that was a conflict with the granted first one of its
// key is the first itself, once that one is denied.
func TestP7_ALostGroupIsDecidedFromTheBeginning(t *testing.T) {
	cut, proxied := localtest.NewCutter(t, migrated(t))
	tenant := uuid.Must(uuid.NewV7())
	g := &changingGrants{grants: grants{limits: map[uuid.UUID]int64{tenant: 10}}}
	l, _ := openLogAt(t, proxied, func(c *Config) { c.Histories = g })
	submit(t, l, tenant, requestFor(tenant, "warm", 1)) // origins are known, the statements are prepared
	first := g.reads.Load() + 1
	g.change = func(read int32, g *grants) {
		if read > first {
			g.limits[tenant] = 3
		}
	}
	var subs []*submission
	for _, amount := range []int{5, 2} {
		s := &submission{tenant: tenant, done: make(chan error, 1), load: newQueueLoad(time.Hour), outcomes: make([]metering.Outcome, 1)}
		s.batch = []metering.Submitted{requestFor(tenant, "x", amount)}
		subs = append(subs, s)
	}
	cut.Request.Store(1)
	newWriter(l, false).commit(subs)
	for i, want := range []string{"denied", "granted at 3"} {
		must.OK(t, <-subs[i].done)
		if got := outcomeOf(&subs[i].batch[0], &subs[i].outcomes[0]); got != want {
			t.Errorf("request %d is %s, not %s", i, got, want)
		}
	}
	if cut.Reached.Load() != 1 {
		t.Errorf("%d COMMITs were cut", cut.Reached.Load())
	}
}

// A request is decided at the time of its lock: while it waited for the head, a reservation may have become due.
func TestP7_ARequestIsDecidedAtTheTimeOfItsLock(t *testing.T) {
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	tenant := uuid.Must(uuid.NewV7())
	l, pool := openLogAt(t, migrated(t), func(c *Config) {
		c.Histories, c.Now = &grants{limits: map[uuid.UUID]int64{tenant: 10}}, now
	})
	q := quotasOn(l, now)
	hold := func(id string) error {
		_, _, err := q.Hold(t.Context(), callerOf(tenant),
			[]intake.Holding{{ReservationID: id, Feature: "f", Amount: 10, Lasts: time.Minute}}, func(int) string { return "" })
		return err
	}
	must.OK(t, hold("first"))
	tx, err := pool.Begin(t.Context())
	must.OK(t, err)
	must.Exec(t, tx, `SELECT FROM log_heads WHERE partition = $1 FOR UPDATE`, events.PartitionOf(tenant))
	done := make(chan error, 1)
	go func() { done <- hold("second") }()
	for count(t, pool, `SELECT count(*) FROM pg_locks WHERE NOT granted`) == 0 {
		time.Sleep(time.Millisecond)
	}
	ahead.Store(int64(2 * time.Minute))
	must.OK(t, tx.Rollback(t.Context()))
	if err := <-done; err != nil {
		t.Errorf("refused because of a reservation that was due: %v", err)
	}
}

// A reservation ends also if the tenant's history cannot be read: it needs no grant.
func TestP7_AReservationEndsWithoutAHistory(t *testing.T) {
	tenant := uuid.Must(uuid.NewV7())
	g := &grants{limits: map[uuid.UUID]int64{tenant: 10}}
	l, _ := openLogAt(t, migrated(t), func(c *Config) { c.Histories = g })
	q := quotasOn(l, time.Now)
	for _, id := range []string{"released", "committed"} {
		if _, _, err := q.Hold(t.Context(), callerOf(tenant),
			[]intake.Holding{{ReservationID: id, Feature: "f", Amount: 5, Lasts: time.Hour}}, func(int) string { return "" }); err != nil {
			t.Fatal(err)
		}
	}
	delete(g.limits, tenant)
	if r, err := q.Release(t.Context(), callerOf(tenant), "f", "released"); err != nil || string(*r.Held) != "5" || *r.Limit != 10 {
		t.Errorf("released: %+v %v", r, err)
	}
	c, _, err := q.Commit(t.Context(), callerOf(tenant), &intake.Commitment{ReservationID: "committed", EventID: "e", Feature: "f",
		Amount: 3})
	if err != nil || string(*c.Used) != "3" || string(*c.Held) != "0" {
		t.Errorf("committed: %+v %v", c, err)
	}
	if _, _, err := q.Hold(t.Context(), callerOf(tenant),
		[]intake.Holding{{ReservationID: "next", Feature: "f", Amount: 1, Lasts: time.Hour}}, func(int) string { return "" }); err == nil {
		t.Error("held without a history")
	}
}

// tornHistories fail at the first read. The time of the group ends during the second one.
type tornHistories struct {
	grants
	reads atomic.Int32
	end   context.CancelFunc
}

func (h *tornHistories) Of(ctx context.Context, _ Query, _ []uuid.UUID, _ []events.InlineStretch) (map[uuid.UUID]domain.TenantHistory,
	error) {
	if h.reads.Add(1) == 1 {
		return nil, errors.New("the history is torn")
	}
	h.end()
	return nil, ctx.Err()
}

// A group that could not be written until its deadline is answered with the reason, not with the deadline.
func TestAFailedGroupNamesItsCause(t *testing.T) {
	tenant := uuid.Must(uuid.NewV7())
	torn := &tornHistories{grants: grants{limits: map[uuid.UUID]int64{tenant: 10}}}
	l, _ := openLogAt(t, migrated(t), func(c *Config) { c.Histories, c.Logger = torn, slog.New(slog.DiscardHandler) })
	w := newWriter(l, false)
	w.bound = func() (ctx context.Context, end context.CancelFunc) {
		ctx, torn.end = context.WithCancel(t.Context())
		return ctx, torn.end
	}
	s := &submission{tenant: tenant, done: make(chan error, 1), load: newQueueLoad(time.Hour), outcomes: make([]metering.Outcome, 1)}
	s.batch = []metering.Submitted{requestFor(tenant, "x", 1)}
	w.commit([]*submission{s})
	if err := <-s.done; !errors.Is(err, commands.ErrUnavailable) || !strings.Contains(err.Error(), "the history is torn") {
		t.Errorf("answered by %v", err)
	}
}

// betweenLocks runs do when a session first gives up its locks.
type betweenLocks struct {
	server.Database
	once sync.Once
	do   func()
}

type sessionBetweenLocks struct {
	server.Session
	of *betweenLocks
}

func (b *betweenLocks) Session(ctx context.Context) (server.Session, error) {
	s, err := b.Database.Session(ctx)
	return sessionBetweenLocks{s, b}, err
}

func (s sessionBetweenLocks) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := s.Session.Exec(ctx, sql, args...)
	if sql == "rollback" {
		s.of.once.Do(s.of.do)
	}
	return tag, err
}

// After a failover the locks are given up to raise the epoch: what was read behind them is read again.
func TestP7_RequestsAreDecidedByWhatIsReadAfterTheEpochIsRaised(t *testing.T) {
	url, tenant := migrated(t), uuid.Must(uuid.NewV7())
	limit := func(c *Config) { c.Histories = &grants{limits: map[uuid.UUID]int64{tenant: 10}} }
	l, _ := openLogAt(t, url, limit)
	another, _ := openLogAt(t, url, limit)
	here, there := quotasOn(l, time.Now), quotasOn(another, time.Now)
	hold := func(q *metering.Quotas, id string) {
		t.Helper()
		if _, _, err := q.Hold(t.Context(), callerOf(tenant),
			[]intake.Holding{{ReservationID: id, Feature: "f", Amount: 10, Lasts: time.Minute}}, func(int) string {
				return ""
			}); err != nil {
			t.Fatal(err)
		}
	}
	hold(here, "first")
	if _, err := asOwner(t, url).Exec(`UPDATE log_heads SET started_at = started_at - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	reached := false
	l.db = &betweenLocks{Database: l.db, do: func() {
		reached = true
		if _, err := there.Release(t.Context(), callerOf(tenant), "f", "first"); err != nil {
			t.Error(err)
		}
		hold(there, "second")
	}}
	_, _, err := here.Commit(t.Context(), callerOf(tenant), &intake.Commitment{ReservationID: "first", Feature: "f", EventID: "used",
		Amount: 10})
	var refusal *domain.Error
	if !errors.As(err, &refusal) || refusal.Code != "reservation_ended" || !reached {
		t.Errorf("the commit of a released reservation is answered with %v (reached: %v)", err, reached)
	}
}
