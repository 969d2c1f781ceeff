package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// holdHead locks a partition's head until it is released, and so blocks its appends.
func holdHead(t *testing.T, pool *pgxpool.Pool, partition int16) (let func()) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must.OK(t, err)
	must.Exec(t, tx, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	must.Exec(t, tx, lockHeadsSQL, []int16{partition})
	let = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(let)
	return let
}

func recorded(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE subject = $1`, events.UsageRecorded).Scan(&n)
	must.OK(t, err)
	return n
}

func isOverloaded(err error) bool {
	var full *commands.Overloaded
	return errors.As(err, &full) && errors.Is(err, commands.ErrUnavailable)
}

func TestABlockedWriterRefusesAtOnceAndStoresNothing(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	load := l.ownWriter(tenant).load
	load.longest = 30 * time.Millisecond
	let := holdHead(t, pool, events.PartitionOf(tenant))
	first := make(chan error, 1)
	go func() {
		_, err := l.Submit(context.Background(), tenant, []metering.Submitted{usageEvent(tenant, "first", 1)})
		first <- err
	}()
	must.Until(t, "the door is shut", func() bool { return isOverloaded(l.Admit(tenant)) })
	for n := range 10 {
		if _, err := l.Submit(t.Context(), tenant, []metering.Submitted{usageEvent(tenant, fmt.Sprint("refused", n), 1)}); !isOverloaded(
			err) {
			t.Fatalf("a submission was taken: %v", err)
		}
	}
	if q := l.Queue(); q.Rows != 1 || q.Bytes == 0 || q.Wait < load.longest {
		t.Errorf("the queue is reported as %+v", q)
	}
	let()
	if err := <-first; err != nil {
		t.Errorf("what had been taken was not stored: %v", err)
	}
	if n := recorded(t, pool); n != 1 {
		t.Errorf("%d events are in the log, 1 was taken", n)
	}
	must.Until(t, "the door is open", func() bool { return l.Admit(tenant) == nil })
	if got := submit(t, l, tenant, usageEvent(tenant, "refused0", 1)); got[0].Status != metering.Appended {
		t.Errorf("what was refused and sent again is %v", got[0].Status)
	}
	if q := l.Queue(); q.Rows != 0 || q.Bytes != 0 {
		t.Errorf("after all were answered, %+v waits", q)
	}
}

func TestTheQueueOfAWriterIsBounded(t *testing.T) {
	tier.AtSize(t)
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	load := l.ownWriter(tenant).load
	load.longest = time.Hour
	const callers, size = 40, 1000 // of one tenant, which is alone: tenants beside each other leave half of what is free
	batches := make([][]metering.Submitted, callers)
	for caller := range batches {
		for i := range size {
			batches[caller] = append(batches[caller], usageEvent(tenant, fmt.Sprint(caller, "/", i), 1))
		}
	}
	let := holdHead(t, pool, events.PartitionOf(tenant))
	var taken, refused, most atomic.Int64
	var all sync.WaitGroup
	for _, batch := range batches {
		all.Go(func() {
			_, err := l.Submit(context.Background(), batch[0].TenantID, batch)
			switch {
			case err == nil:
				taken.Add(size)
			case isOverloaded(err):
				refused.Add(size)
			default:
				t.Errorf("neither taken nor refused: %v", err)
			}
		})
	}
	must.Until(t, "all have asked", func() bool {
		rows := load.rows.Load()
		most.Store(max(most.Load(), rows))
		return rows+refused.Load() == callers*size
	})
	if most.Load() != maxQueuedRows || refused.Load() != callers*size-maxQueuedRows {
		t.Errorf("%d rows waited, %d were refused; the bound is %d", most.Load(), refused.Load(), maxQueuedRows)
	}
	let()
	all.Wait()
	if n := recorded(t, pool); int64(n) != taken.Load() || taken.Load() != maxQueuedRows {
		t.Errorf("%d events are in the log, %d were taken", n, taken.Load())
	}
}

// neighbourOf makes a tenant of the same partition.
func neighbourOf(tenant uuid.UUID) uuid.UUID {
	for {
		if id := uuid.Must(uuid.NewV7()); events.PartitionOf(id) == events.PartitionOf(tenant) {
			return id
		}
	}
}

// A tenant that sends as fast as it can fills half of its writer's queue, by rows, bytes
// and time. Large and small submissions of a neighbour are accepted, and the submissions
// of both are stored.
func TestOneTenantHasHalfOfAQueue(t *testing.T) {
	tier.AtSize(t)
	for _, bound := range []string{"rows", "bytes", "time"} {
		t.Run(bound, func(t *testing.T) {
			l, pool, _ := openLog(t)
			whale := uuid.Must(uuid.NewV7())
			small := neighbourOf(whale)
			load := l.ownWriter(whale).load
			load.longest = time.Hour
			size, pad, most := 1000, 0, maxQueuedRows/2
			switch bound {
			case "bytes":
				size, pad, most = 100, maxQueuedBytes/2/1000, 1000 // some 10 batches
			case "time":
				load.longest, most = 2*time.Minute, 1200*10
				load.perRow.Store(int64(5 * time.Millisecond)) // 12,000 rows take a minute
			}
			more := fmt.Appendf(nil, `,null,%q]`, strings.Repeat("x", pad))
			let := holdHead(t, pool, events.PartitionOf(whale)) // a group gives up 8 s after it began to wait
			batchOf := func(tenant uuid.UUID, name string, n int) (b []metering.Submitted) {
				for i := range n {
					u := usageEvent(tenant, fmt.Sprint(name, "/", i), 1)
					u.Payload = append(u.Payload[:len(u.Payload)-1], more...)
					b = append(b, u)
				}
				return b
			}
			var all sync.WaitGroup
			var taken, refused atomic.Int64
			send := func(tenant uuid.UUID, name string, n int) {
				all.Go(func() {
					switch _, err := l.Submit(context.Background(), tenant, batchOf(tenant, name, n)); {
					case err == nil:
						taken.Add(int64(n))
					case isOverloaded(err):
						refused.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			for n := 0; refused.Load() == 0; n++ {
				_ = l.Admit(small) // seen, so that the whale is not alone
				before := load.rows.Load()
				send(whale, fmt.Sprint("whale", n), size)
				must.Until(t, "it is accepted or refused", func() bool { return load.rows.Load() > before || refused.Load() > 0 })
			}
			if rows := int(load.rows.Load()); rows > most+size || rows < most/2 {
				t.Errorf("the whale has %d rows in the queue, half of it is %d", rows, most)
			}
			if !isOverloaded(l.Admit(whale)) && bound == "time" || l.Admit(small) != nil {
				t.Error("the door is not shut for the whale, or shut for its neighbour")
			}
			before := load.rows.Load()
			send(small, "large", size)
			send(small, "one", 1)
			must.Until(t, "the neighbour is accepted", func() bool {
				return load.rows.Load() == before+int64(size)+1 || refused.Load() > 1
			})
			let()
			all.Wait()
			if n := recorded(t, pool); int64(n) != taken.Load() || refused.Load() != 1 {
				t.Errorf("%d events are in the log, %d were taken, %d refused", n, taken.Load(), refused.Load())
			}
			if len(load.shares) != 0 || len(l.shared.load.shares) != 0 {
				t.Errorf("shares are left: %v %v", load.shares, l.shared.load.shares)
			}
		})
	}
}

func TestTheExpectedWaitFollowsTheMeasuredRate(t *testing.T) {
	q := newQueueLoad(0)
	q.perRow.Store(int64(100 * time.Microsecond))
	if q.longest != standardWait || q.check(0, 1_000_000, 1<<40) != nil {
		t.Error("an empty queue refuses")
	}
	if q.check(4000, 1000, 1000) != nil || q.check(6000, 1000, 1000) == nil {
		t.Error("without a measurement everything is accepted, or little is refused")
	}
	q.perRow.Store(1)
	if q.check(maxQueuedRows/2, 1000, 1000) != nil {
		t.Error("a queue that is fast refuses")
	}
	if q.check(maxQueuedRows, 1, 1) == nil || q.check(1, 1, maxQueuedBytes+1) == nil {
		t.Error("rows or bytes are not bounded")
	}
	q.perRow.Store(int64(time.Millisecond))
	if q.check(450, 1000, 1) != nil || q.check(550, 1, 1) == nil {
		t.Error("a wait below the bound is refused, or one above is not")
	}
	const hour = int64(time.Hour)
	q.started = time.Now().Add(-2 * time.Hour)
	q.since.Store(hour)
	q.end(measuredRows-1, true)
	q.since.Store(hour)
	q.end(maxGroupRows, false)
	q.since.Store(hour)
	q.end(0, true)
	if q.perRow.Load() != int64(time.Millisecond) {
		t.Error("a slow group that is small or failed changes the estimate of a row")
	}
	q.since.Store(hour)
	q.end(maxGroupRows, true)
	if q.check(550, 1, 1) == nil {
		t.Error("a slow group changes nothing")
	}
	// Small groups alone must be able to lower the estimate again: the shared writer may
	// never have a large one.
	for range 60 {
		q.begin()
		q.end(1, true)
	}
	if q.check(maxQueuedRows-1, 1, 1) != nil {
		t.Errorf("one slow group is never forgotten: %s a row", time.Duration(q.perRow.Load()))
	}
	if q.since.Load() != 0 {
		t.Error("a group seems to be under way")
	}
}
