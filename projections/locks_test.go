package projections_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/query"
)

// Inline validation holds heads, which come after checkpoints in the order of locks: it waits for no checkpoint.
func TestInlineValidationWaitsForNoCheckpoint(t *testing.T) {
	y := newRebuildFixture(t)
	l := newInlineLog(y.logFixture, consume.NewHandover())
	tenant := l.inlineTenant()
	tx, err := l.pool.Begin(t.Context())
	l.must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT FROM consumer_checkpoints WHERE consumer = $1 AND partition = 4 FOR UPDATE`, events.GroupValidator)
	l.must(err)
	done := make(chan error, 1)
	go func() {
		_, err := l.log.Submit(context.Background(), tenant, []commands.Submitted{{Pending: usageEvent(tenant, "a", "calls", 1, may)}})
		done <- err
	}()
	for waited := false; ; {
		select {
		case err := <-done:
			l.must(err)
			return
		default:
		}
		if !waited && y.lockWaiters() > 0 {
			waited = true
			t.Error("the transaction that records usage waits for the validator's checkpoint")
		}
	}
}

// A record without a place in the log is not acknowledged before its dead letter is stored, also if the consumer stops meanwhile.
func TestP3_AStrayIsNotAcknowledgedAtAStop(t *testing.T) {
	s := newPipelineFixture(t)
	stray := []events.Record{{Topic: events.TopicUsageRaw, Partition: 4, Offset: 700, Value: []byte("garbage"), Key: []byte("k")}}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := s.validating.Process(stopped, stray); err == nil {
		t.Error("a record is acknowledged, and its dead letter is not stored")
	}
	s.process(s.validating, stray)
	var letters int
	s.must(s.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log WHERE subject = $1`, int16(events.RecordParked)).Scan(&letters))
	if letters != 1 {
		t.Errorf("%d dead letters after it came again", letters)
	}
}

// A promotion decides behind the locks of the checkpoints: a generation that its consumer detaches meanwhile is not promoted.
func TestP5_AGenerationDetachedMeanwhileIsNotPromoted(t *testing.T) {
	y := newRebuildFixture(t)
	y.versions(doubled, foldDoubled)
	tenant := y.tenants(1)[0]
	y.append(usageEvent(tenant, "a", "calls", 10, may))
	y.settle()
	r := y.built(commands.StartRebuild{})
	consumer, err := y.pool.Begin(t.Context())
	y.must(err)
	defer func() { _ = consumer.Rollback(context.Background()) }()
	_, err = consumer.Exec(t.Context(), `UPDATE consumer_checkpoints SET joined = false WHERE consumer = $1 AND generation = $2 AND partition = 31`, r.Consumer, r.Generation)
	y.must(err)
	done := make(chan error, 1)
	go func() { done <- y.promote(r) }()
	y.until(func() bool { return y.lockWaiters() > 0 })
	y.must(consumer.Commit(t.Context()))
	if refusal := (*domain.Error)(nil); !errors.As(<-done, &refusal) {
		t.Errorf("a generation that is not fed in every partition is promoted: %v", refusal)
	}
	y.checkAmounts("still the first", map[uuid.UUID]string{tenant: "2026-05:10 "})
}

// A read that waits for the aggregates and for the dead letters has one deadline, which counts from the request.
func TestAWaitForDeadLettersHasOneDeadline(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	at := s.append(usageEvent(tenant, "rejected", "calls", 1, may))[0]
	s.drain(s.validating, s.aggregating) // and not the dead letter handler
	const wait = 200 * time.Millisecond
	letters := 0
	cfg := s.pool.Config().Copy()
	cfg.ConnConfig.Tracer = localtest.RoundTrips(func(_ *pgx.Conn, statements []string) {
		switch sql := strings.Join(statements, "\n"); {
		case strings.Contains(sql, "consumer_standing("):
			time.Sleep(2 * wait)
		case strings.Contains(sql, "meterplex-dead-letter-handler"):
			letters++
		}
	})
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	s.must(err)
	defer pool.Close()
	err = (&query.DB{Pool: pool}).AwaitAll(t.Context(), tenantViewer(tenant), tenant, query.Wait{MinPosition: &at, For: wait})
	if !errors.Is(err, query.ErrProjectionBehind) {
		t.Errorf("the dead letters are behind, and the answer is %v", err)
	}
	if letters != 1 {
		t.Errorf("after the deadline the dead letters were read %d times, want once", letters)
	}
}
