package deadletters_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
)

// P3: a discarded dead letter stays rejected: no retry requested before or after,
// and no rebuild, counts its event.
func TestP3_DiscardedIsRejectedForEver(t *testing.T) {
	s := NewLetters(t)
	tenant := NewID()
	p := events.PartitionOf(tenant)
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly))
	s.Append(Usage(tenant, "good", "calls", 1, May), Usage(tenant, "bad", "panics", 5, May), Usage(tenant, "none", "unknown", 1, May))
	broken, _ := s.BrokenAggregator()
	s.Drain(s.Validating, broken, s.Lettering)
	if c := s.Counts(p); c.Parked != 1 || c.Rejected != 1 {
		t.Fatalf("%+v", c)
	}
	for _, d := range s.Failed(tenant) {
		s.Must(s.RetryNow(tenant, d.ID)) // asked for, not executed yet
		s.Must(s.Discard(tenant, d.ID))
		RefusedWith(t, "dead_letter_not_retryable", s.RetryNow(tenant, d.ID))
		RefusedWith(t, "dead_letter_not_discardable", s.Discard(tenant, d.ID))
		RefusedWith(t, "dead_letter_not_found", s.Discard(NewID(), d.ID))
	}
	for range 2 {
		if c := s.Counts(p); c.Parked != 0 || c.Rejected != 2 || c.Accepted != 3 {
			t.Errorf("%+v", c)
		}
		s.CheckIdentity()
		s.Drain(s.Executing)
		s.Settle()
	}
	if bad, none := s.Receipt(tenant, "bad").Status, s.Receipt(tenant, "none").Status; bad != projections.UsageRejected ||
		none != projections.UsageRejected {
		t.Errorf("receipts %s and %s", bad, none)
	}
	if len(s.Failed(tenant)) != 0 || len(s.LetterList(tenant, events.StatusDiscarded)) != 2 {
		t.Errorf("%+v", s.LetterList(tenant, ""))
	}
	// By folds that accept the events that the live one refused.
	y := RebuildsOf(s.Pipeline)
	r := y.Start(repair.StartRebuild{Projection: projections.ProjectionUsage})
	y.WhileRebuilding(func() { y.Ready(r) }, y.Rebuilder(10))
	if err := y.SameRows(r, 1); err != nil {
		t.Error(err)
	}
}

// Dead letters being retried or already closed are not discarded.
func TestOnlyFailedLettersAreDiscarded(t *testing.T) {
	s := NewLetters(t)
	tenant := NewID()
	s.Append(Usage(tenant, "e", "calls", 1, May))
	s.Settle()
	id := s.Failed(tenant)[0].ID
	s.Must(s.RetryNow(tenant, id))
	s.Drain(s.Executing)
	RefusedWith(t, "dead_letter_not_discardable", s.Discard(tenant, id)) // RETRYING, though the projection says FAILED
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	s.Settle()
	if len(s.Failed(tenant)) != 1 {
		t.Errorf("the subscription came later than the retry: %+v", s.LetterList(tenant, ""))
	}
	s.Must(s.RetryNow(tenant, id))
	s.Drain(s.Executing, s.Validating)
	RefusedWith(t, "dead_letter_not_discardable", s.Discard(tenant, id)) // RESOLVED
	s.Settle()
	s.CheckIdentity()
	for _, reason := range []string{"", " ", "a\x00b", string(make([]byte, 501))} {
		_, err := s.Commands.Discard(context.Background(), commands.Request{By: Billing}, id, tenant, reason)
		RefusedWith(t, "reason_invalid", err)
	}
}

// redeliver hands a topic's records over once more from a few before the checkpoint on,
// each three times, shuffled.
func redeliver(s *Letters, random *rand.Rand, r *consume.Runner, partition int16) {
	s.Helper()
	records := s.Topic(r.Consumer.Topic, partition, max(0, s.Checkpoint(r.Consumer.Name, partition)-20))
	records = append(append(records, records...), records...)
	random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	for len(records) > 0 {
		n := min(len(records), 1+random.IntN(20))
		s.Process(r, records[:n])
		records = records[n:]
	}
}

// P2: whatever is retried, requested, executed and delivered how often, and in
// which order, an event that is counted is counted once.
func TestP2_RetriesCountOnce(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := NewLetters(t)
	rapid.Check(t, func(rt *rapid.T) {
		tenant := NewID()
		p := events.PartitionOf(tenant)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		model := NewLedger()
		for n := range rapid.IntRange(1, 6).Draw(rt, "events") {
			s.Append(Usage(tenant, fmt.Sprint(n), "calls", int64(n+1), May))
			model.Add(tenant, "calls", int64(n+1), May)
		}
		s.Drain(s.Validating, s.Lettering)
		subscribed := false
		for range rapid.IntRange(4, 12).Draw(rt, "steps") {
			switch step := rapid.SampledFrom([]string{"retry", "execute", "subscribe", "validate", "retry", "execute", "aggregate", "fold",
				"bulk"}).Draw(rt, "step"); step {
			case "subscribe":
				if !subscribed {
					s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
				}
				subscribed = true
			case "validate":
				redeliver(s, random, s.Validating, p)
			case "aggregate":
				redeliver(s, random, s.Aggregating, p)
			case "fold":
				redeliver(s, random, s.Lettering, p)
			case "execute":
				redeliver(s, random, s.Executing, p)
			case "retry":
				for _, d := range s.LetterList(tenant, "") { // whatever the projection has: the log decides
					_, err := s.Commands.RequestRetry(t.Context(), commands.Request{By: Billing}, d.ID, tenant, "")
					if no := (*domain.Error)(nil); err != nil && !errors.As(err, &no) {
						rt.Fatal(err)
					}
				}
			case "bulk":
				_, err := s.Bulk(events.BulkRetry, tenant, commands.Idempotency{})
				s.Must(err)
			}
		}
		if !subscribed {
			s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
		}
		s.Drain(s.Validating, s.Lettering, s.Executing, s.Validating, s.Aggregating, s.Lettering)
		for len(s.Failed(tenant)) > 0 {
			_, err := s.Bulk(events.BulkRetry, tenant, commands.Idempotency{})
			s.Must(err)
			s.Drain(s.Executing, s.Validating, s.Aggregating, s.Lettering)
		}
		got := s.Aggregates()
		for k := range got {
			if k.Tenant != tenant {
				delete(got, k)
			}
		}
		model.Check(rt, got)
		s.CheckIdentity()
	})
}

// A bulk retry fixes wrong verdicts of the validator: new verdicts are new facts.
// The events of two tenants of one partition exceed one transaction, and all are
// delivered again.
func TestP2_BulkRetryAcceptsWronglyRejectedUsage(t *testing.T) {
	s := NewLetters(t)
	random := rand.New(rand.NewPCG(tier.Seed(t), 0))
	a, b := TenantIn(7), TenantIn(7)
	var batch []events.Pending
	for n := range 230 {
		batch = append(batch, Usage(a, fmt.Sprint(n), "calls", 2, May), Usage(b, fmt.Sprint(n), "calls", 3, May))
	}
	s.Append(batch...)
	s.Settle()
	if len(s.Failed(a)) != 230 || len(s.Aggregates()) != 0 {
		t.Fatalf("%d rejected, aggregates %+v", len(s.Failed(a)), s.Aggregates())
	}
	for _, tenant := range []uuid.UUID{a, b} {
		s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
		done, err := s.Bulk(events.BulkRetry, tenant, commands.Idempotency{})
		if err != nil || done.Matched != 230 || done.Done != 230 || len(done.Refused) != 0 {
			t.Fatalf("%+v %v", done, err)
		}
	}
	for range 2 {
		for _, r := range []*consume.Runner{s.Executing, s.Validating, s.Aggregating, s.Lettering} {
			redeliver(s, random, r, 7)
			s.Drain(r)
		}
	}
	for tenant, amount := range map[uuid.UUID]string{a: "460", b: "690"} {
		if got := s.Figure(tenant, "calls", "2026-05"); got.Amount != amount || got.Count != 230 {
			t.Errorf("%+v", got)
		}
		done, err := s.Bulk(events.BulkRetry, tenant, commands.Idempotency{})
		if err != nil || done.Done != 0 || len(done.Refused) != 1 || done.Refused[0].Count != 230 ||
			done.Refused[0].Code != "dead_letter_not_retryable" {
			t.Errorf("all are resolved: %+v %v", done, err)
		}
	}
	s.CheckIdentity()
}

// failingStore is a store that is away after some changes.
type failingStore struct {
	repair.DeadLetterStore
	left int
}

func (d *failingStore) ChangeDeadLetters(ctx context.Context, tenant uuid.UUID, decide func(repair.DeadLetterTx) error) error {
	if d.left--; d.left < 0 {
		return commands.ErrUnavailable
	}
	return d.DeadLetterStore.ChangeDeadLetters(ctx, tenant, decide)
}

// An interrupted bulk may be sent again, with or without its key: each dead letter
// is requested once.
func TestP2_BulkResumesAfterAnInterruption(t *testing.T) {
	for _, key := range []string{"a key", ""} {
		s := NewLetters(t)
		tenant := TenantIn(9)
		var batch []events.Pending
		for n := range 450 {
			batch = append(batch, Usage(tenant, fmt.Sprint(n), "calls", 1, May))
		}
		s.Append(batch...)
		s.Settle()
		once := commands.Idempotency{Key: key, RequestHash: [32]byte{1}}
		s.Commands.Store = &failingStore{s.Store, 3} // the request, and two of three parts
		if _, err := s.Bulk(events.BulkRetry, tenant, once); !errors.Is(err, commands.ErrUnavailable) {
			t.Fatal(err)
		}
		s.Commands.Store = s.Store
		done, err := s.Bulk(events.BulkRetry, tenant, once)
		want := map[string]int{"a key": 450, "": 50}[key]
		if err != nil || done.Matched != 450 || done.Done != want {
			t.Errorf("%q: %+v %v", key, done, err)
		}
		if key == "" && (len(done.Refused) != 1 || done.Refused[0].Code != "retry_requested" || done.Refused[0].Count != 400) {
			t.Errorf("%+v", done.Refused)
		}
		s.Drain(s.Executing, s.Validating, s.Lettering)
		var requests, retries, bulks int
		s.Must(s.Pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE subject = 13), count(*) FILTER (WHERE subject = 6),
			count(*) FILTER (WHERE subject = 17) FROM event_log_rows`).
			Scan(&requests, &retries, &bulks))
		if requests != 450 || retries != 450 || bulks != map[string]int{"a key": 1, "": 2}[key] {
			t.Errorf("%q: %d requests, %d retries, %d bulks", key, requests, retries, bulks)
		}
		if key == "" {
			continue
		}
		if again, err := s.Bulk(events.BulkRetry, tenant, once); err != nil || fmt.Sprint(again) != fmt.Sprint(done) {
			t.Errorf("the first answer: %+v instead of %+v %v", again, done, err)
		}
		_, err = s.Bulk(events.BulkRetry, tenant, commands.Idempotency{Key: key, RequestHash: [32]byte{2}})
		if no := (*domain.Error)(nil); !errors.As(err, &no) || no.Code != "idempotency_key_reused" {
			t.Errorf("another request under the key: %v", err)
		}
	}
}

// An unreadable request blocks no consumer: it is reported and passed.
func TestInvalidRetryRequestsAreRefused(t *testing.T) {
	s := NewLetters(t)
	s.Payloads.Allow() // one is not an object
	tenant := TenantIn(3)
	s.Append(Usage(tenant, "e", "calls", 1, May))
	s.Settle()
	bad := Plain(tenant, events.RetryRequested, events.Counts{}, "not an object")
	good := Plain(tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: s.Failed(tenant)[0].ID, Attempt: 1})
	again := Plain(tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: s.Failed(tenant)[0].ID, Attempt: 1})
	nobody := Plain(tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: NewID()})
	s.Append(bad, good, again, nobody)
	s.Drain(s.Executing, s.Lettering)
	var retried, refused, discarded int
	s.Must(s.Pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE subject = 14), count(*) FILTER (WHERE subject = 16),
		count(*) FILTER (WHERE subject = 15) FROM event_log_rows`).
		Scan(&retried, &refused, &discarded))
	if retried != 1 || refused != 2 || discarded != 1 {
		t.Errorf("%d retried, %d refused, %d discarded", retried, refused, discarded)
	}
	// Rejected again since: earlier requests are done.
	s.Drain(s.Validating, s.Lettering)
	s.Append(Plain(tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: s.Failed(tenant)[0].ID, Attempt: 1}))
	s.Drain(s.Executing, s.Lettering)
	if d := s.Failed(tenant); len(d) != 1 || d[0].RetryCount != 1 {
		t.Errorf("retried for a request that was met: %+v", d)
	}
}
