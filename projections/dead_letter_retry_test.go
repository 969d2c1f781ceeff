package projections_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
)

// retryFixture is a pipeline fixture in which somebody decides over dead letters.
type retryFixture struct {
	*pipelineFixture
	letters   *commands.DeadLetters
	executing *consume.Runner
}

var billing = commands.Caller{TenantID: events.Platform, KeyID: uuid.MustParse("00000000-0000-7000-8000-00000000000b"), Scopes: []string{commands.ScopeBilling}}

func newRetryFixture(t testing.TB) *retryFixture {
	s := newPipelineFixture(t)
	letters := &commands.DeadLetters{Store: s.store, Now: time.Now, NewID: newID}
	executing, _ := s.runner(projections.Consumer{Name: events.GroupCommands, Topic: events.TopicCommands, Handler: &store.Commands{Log: s.log, Letters: letters}})
	return &retryFixture{s, letters, executing}
}

// letterList lists a tenant's dead letters of a status, as the projection has them.
func (s *retryFixture) letterList(tenant uuid.UUID, status string) []deadletters.DeadLetter {
	s.Helper()
	page, err := s.reads.DeadLetters(context.Background(), operator, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Status: status}, Limit: 1000})
	s.must(err)
	return page.Data
}

func (s *retryFixture) failed(tenant uuid.UUID) []deadletters.DeadLetter {
	s.Helper()
	return s.letterList(tenant, events.StatusFailed)
}

// bulk runs a bulk command, filtered by tenant.
func (s *retryFixture) bulk(action string, tenant uuid.UUID, once commands.Idempotency) (commands.BulkResult, error) {
	ask := commands.BulkRequest{Action: action, Reason: "a test", Filter: events.DeadLetterFilter{TenantID: &tenant}}
	return s.letters.Bulk(context.Background(), commands.Request{By: billing, Idempotency: once}, ask, func(ctx context.Context) ([]domain.DeadLetterRef, error) {
		return s.reads.FindDeadLetters(ctx, &ask.Filter, commands.MaxBulk+1)
	})
}

func (s *retryFixture) checkIdentity() {
	s.Helper()
	identity, err := s.reads.Identity(context.Background())
	s.must(err)
	if !identity.Holds {
		s.Fatalf("the identity does not hold: %+v", identity.Total)
	}
}

// redeliver hands a topic's records over once more from a few before the checkpoint on,
// each three times, shuffled.
func (s *retryFixture) redeliver(random *rand.Rand, r *consume.Runner, partition int16) {
	s.Helper()
	records := s.topic(r.Consumer.Topic, partition, max(0, s.checkpoint(r.Consumer.Name, partition)-20))
	records = append(append(records, records...), records...)
	random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	for len(records) > 0 {
		n := min(len(records), 1+random.IntN(20))
		s.process(r, records[:n])
		records = records[n:]
	}
}

// P2: whatever is retried, requested, executed and delivered how often, and in
// which order, an event that is counted is counted once.
func TestP2_RetriesCountOnce(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := newRetryFixture(t)
	rapid.Check(t, func(rt *rapid.T) {
		tenant := newID()
		p := events.PartitionOf(tenant)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		model := newLedger()
		for n := range rapid.IntRange(1, 6).Draw(rt, "events") {
			s.append(usageEvent(tenant, fmt.Sprint(n), "calls", int64(n+1), may))
			model.add(tenant, "calls", int64(n+1), may)
		}
		s.drain(s.validating, s.lettering)
		subscribed := false
		for range rapid.IntRange(4, 12).Draw(rt, "steps") {
			switch step := rapid.SampledFrom([]string{"retry", "execute", "subscribe", "validate", "retry", "execute", "aggregate", "fold", "bulk"}).Draw(rt, "step"); step {
			case "subscribe":
				if !subscribed {
					s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
				}
				subscribed = true
			case "validate":
				s.redeliver(random, s.validating, p)
			case "aggregate":
				s.redeliver(random, s.aggregating, p)
			case "fold":
				s.redeliver(random, s.lettering, p)
			case "execute":
				s.redeliver(random, s.executing, p)
			case "retry":
				for _, d := range s.letterList(tenant, "") { // whatever the projection has: the log decides
					_, err := s.letters.RequestRetry(t.Context(), commands.Request{By: billing}, d.ID, tenant, "")
					if no := (*domain.Error)(nil); err != nil && !errors.As(err, &no) {
						rt.Fatal(err)
					}
				}
			case "bulk":
				_, err := s.bulk(events.BulkRetry, tenant, commands.Idempotency{})
				s.must(err)
			}
		}
		if !subscribed {
			s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
		}
		s.drain(s.validating, s.lettering, s.executing, s.validating, s.aggregating, s.lettering)
		for len(s.failed(tenant)) > 0 {
			_, err := s.bulk(events.BulkRetry, tenant, commands.Idempotency{})
			s.must(err)
			s.drain(s.executing, s.validating, s.aggregating, s.lettering)
		}
		got := s.aggregates()
		for k := range got {
			if k.Tenant != tenant {
				delete(got, k)
			}
		}
		model.check(rt, got)
		s.checkIdentity()
	})
}

// A bulk retry fixes wrong verdicts of the validator: new verdicts are new facts.
// The events of two tenants of one partition exceed one transaction, and all are
// delivered again.
func TestP2_BulkRetryAcceptsWronglyRejectedUsage(t *testing.T) {
	s := newRetryFixture(t)
	random := rand.New(rand.NewPCG(tier.Seed(t), 0))
	a, b := tenantIn(7), tenantIn(7)
	var batch []events.Pending
	for n := range 230 {
		batch = append(batch, usageEvent(a, fmt.Sprint(n), "calls", 2, may), usageEvent(b, fmt.Sprint(n), "calls", 3, may))
	}
	s.append(batch...)
	s.settle()
	if len(s.failed(a)) != 230 || len(s.aggregates()) != 0 {
		t.Fatalf("%d rejected, aggregates %+v", len(s.failed(a)), s.aggregates())
	}
	for _, tenant := range []uuid.UUID{a, b} {
		s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
		done, err := s.bulk(events.BulkRetry, tenant, commands.Idempotency{})
		if err != nil || done.Matched != 230 || done.Done != 230 || len(done.Refused) != 0 {
			t.Fatalf("%+v %v", done, err)
		}
	}
	for range 2 {
		for _, r := range []*consume.Runner{s.executing, s.validating, s.aggregating, s.lettering} {
			s.redeliver(random, r, 7)
			s.drain(r)
		}
	}
	for tenant, amount := range map[uuid.UUID]string{a: "460", b: "690"} {
		if got := s.aggregates()[aggregateKey{tenant, "calls", "2026-05"}]; got.Amount != amount || got.Count != 230 {
			t.Errorf("%+v", got)
		}
		done, err := s.bulk(events.BulkRetry, tenant, commands.Idempotency{})
		if err != nil || done.Done != 0 || len(done.Refused) != 1 || done.Refused[0].Count != 230 || done.Refused[0].Code != "dead_letter_not_retryable" {
			t.Errorf("all are resolved: %+v %v", done, err)
		}
	}
	s.checkIdentity()
}

// failingStore is a store that is away after some changes.
type failingStore struct {
	commands.DeadLetterStore
	left int
}

func (d *failingStore) ChangeDeadLetters(ctx context.Context, tenant uuid.UUID, decide func(commands.DeadLetterTx) error) error {
	if d.left--; d.left < 0 {
		return commands.ErrUnavailable
	}
	return d.DeadLetterStore.ChangeDeadLetters(ctx, tenant, decide)
}

// An interrupted bulk may be sent again, with or without its key: each dead letter
// is requested once.
func TestP2_BulkResumesAfterAnInterruption(t *testing.T) {
	for _, key := range []string{"a key", ""} {
		s := newRetryFixture(t)
		tenant := tenantIn(9)
		var batch []events.Pending
		for n := range 450 {
			batch = append(batch, usageEvent(tenant, fmt.Sprint(n), "calls", 1, may))
		}
		s.append(batch...)
		s.settle()
		once := commands.Idempotency{Key: key, RequestHash: [32]byte{1}}
		s.letters.Store = &failingStore{s.store, 3} // the request, and two of three parts
		if _, err := s.bulk(events.BulkRetry, tenant, once); !errors.Is(err, commands.ErrUnavailable) {
			t.Fatal(err)
		}
		s.letters.Store = s.store
		done, err := s.bulk(events.BulkRetry, tenant, once)
		want := map[string]int{"a key": 450, "": 50}[key]
		if err != nil || done.Matched != 450 || done.Done != want {
			t.Errorf("%q: %+v %v", key, done, err)
		}
		if key == "" && (len(done.Refused) != 1 || done.Refused[0].Code != "retry_requested" || done.Refused[0].Count != 400) {
			t.Errorf("%+v", done.Refused)
		}
		s.drain(s.executing, s.validating, s.lettering)
		var requests, retries, bulks int
		s.must(s.pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE subject = 13), count(*) FILTER (WHERE subject = 6), count(*) FILTER (WHERE subject = 17) FROM event_log_rows`).
			Scan(&requests, &retries, &bulks))
		if requests != 450 || retries != 450 || bulks != map[string]int{"a key": 1, "": 2}[key] {
			t.Errorf("%q: %d requests, %d retries, %d bulks", key, requests, retries, bulks)
		}
		if key == "" {
			continue
		}
		if again, err := s.bulk(events.BulkRetry, tenant, once); err != nil || fmt.Sprint(again) != fmt.Sprint(done) {
			t.Errorf("the first answer: %+v instead of %+v %v", again, done, err)
		}
		_, err = s.bulk(events.BulkRetry, tenant, commands.Idempotency{Key: key, RequestHash: [32]byte{2}})
		if no := (*domain.Error)(nil); !errors.As(err, &no) || no.Code != "idempotency_key_reused" {
			t.Errorf("another request under the key: %v", err)
		}
	}
}

// An unreadable request blocks no consumer: it is reported and passed.
func TestInvalidRetryRequestsAreRefused(t *testing.T) {
	s := newRetryFixture(t)
	s.payloads.Allow() // one is not an object
	tenant := tenantIn(3)
	s.append(usageEvent(tenant, "e", "calls", 1, may))
	s.settle()
	bad := plainEvent(tenant, events.RetryRequested, events.Counts{}, "not an object")
	good := plainEvent(tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: s.failed(tenant)[0].ID, Attempt: 1})
	again := plainEvent(tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: s.failed(tenant)[0].ID, Attempt: 1})
	nobody := plainEvent(tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: newID()})
	s.append(bad, good, again, nobody)
	s.drain(s.executing, s.lettering)
	var retried, refused, discarded int
	s.must(s.pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE subject = 14), count(*) FILTER (WHERE subject = 16), count(*) FILTER (WHERE subject = 15) FROM event_log_rows`).
		Scan(&retried, &refused, &discarded))
	if retried != 1 || refused != 2 || discarded != 1 {
		t.Errorf("%d retried, %d refused, %d discarded", retried, refused, discarded)
	}
	// Rejected again since: earlier requests are done.
	s.drain(s.validating, s.lettering)
	s.append(plainEvent(tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: s.failed(tenant)[0].ID, Attempt: 1}))
	s.drain(s.executing, s.lettering)
	if d := s.failed(tenant); len(d) != 1 || d[0].RetryCount != 1 {
		t.Errorf("retried for a request that was met: %+v", d)
	}
}
