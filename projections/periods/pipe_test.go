package periods_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/local/localtest/kafkatest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
)

// kafkaPipe carries the events of a fixture through Kafka, by a relay and consumers of one instance, which can crash.
type kafkaPipe struct {
	*closeFixture
	cfg   kafka.Config
	crash func() // nil: no instance runs
	folds bool   // the instance has the role aggregator
	n     int    // instances so far
}

func newKafkaPipe(f *closeFixture) *kafkaPipe {
	f.Helper()
	p := &kafkaPipe{closeFixture: f, cfg: kafka.Config{Brokers: kafkatest.Broker(f.TB).Brokers(), TopicPrefix: kafkatest.TopicPrefix(f.TB), Logger: slog.New(slog.DiscardHandler)}}
	admin, err := kafka.NewAdmin(p.cfg)
	f.Must(err)
	defer admin.Close()
	f.Must(admin.Ensure(context.Background()))
	return p
}

// consumers are those that the close of a period depends on, in the order of an event's path.
func (p *kafkaPipe) consumers() []*consume.Runner {
	return []*consume.Runner{p.deciding.Executing, p.Validating, p.broken, p.Lettering}
}

// start starts an instance, with or without the aggregator: one that can fold all features, or the one that cannot.
func (p *kafkaPipe) start(mended, folds bool) {
	p.Helper()
	if p.crash != nil {
		return
	}
	p.n++
	p.folds = folds
	name := fmt.Sprint("instance-", p.n)
	pool, err := postgres.Open(context.Background(), postgres.Config{URL: p.URL, ApplicationName: name})
	p.Must(err)
	log, err := eventlog.New(context.Background(), pool, eventlog.Config{Producer: events.Producer{Service: "test", Instance: name, Commit: "0"}, Written: p.Payloads.Written})
	p.Must(err)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var parts []io.Closer
	publisher, err := kafka.NewPublisher(p.cfg)
	p.Must(err)
	carry := &relay.Relay{Pool: pool, Log: log, Appender: log, Publisher: publisher, Instance: name, NewID: NewID, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		LeaseTTL: time.Second, CloseGrace: time.Second}
	running.Go(func() { _ = carry.Run(ctx) })
	for _, of := range p.consumers() {
		c := of.Consumer
		if of == p.broken && !folds {
			continue
		}
		if h, ok := c.Handler.(PoisonedHandler); ok && mended {
			c.Handler = h.Handler
		}
		parts = append(parts, p.consume(ctx, &running, pool, log, c))
	}
	p.crash = func() {
		owner, err := postgres.OwnerDB(p.URL)
		p.Must(err)
		_, err = owner.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, name)
		p.Must(err)
		p.Must(owner.Close())
		stop()
		for _, part := range parts {
			_ = part.Close()
		}
		running.Wait()
		_ = publisher.Close()
		log.Close()
		pool.Close()
		p.crash = nil
	}
}

// consume runs a consumer as a node does. Its memory is that of the instance.
func (p *kafkaPipe) consume(ctx context.Context, running *sync.WaitGroup, pool *pgxpool.Pool, log *eventlog.Log, c projections.Consumer) io.Closer {
	p.Helper()
	r := &consume.Runner{Pool: pool, Log: log, Consumer: c, NewID: NewID, Logger: slog.New(slog.DiscardHandler), Observe: p.Payloads.Observer(nil)}
	router, err := watermill.NewRouter(r.Logger, nil)
	p.Must(err)
	sc := kafka.SubscriberConfig{Config: p.cfg, Group: c.Name, MaxRecordsPerPartition: c.MaxPerPartition}
	if c.Topic.LowRate() {
		sub, err := kafka.NewLowRateSubscriber(sc)
		p.Must(err)
		watermill.AddConsumer(router, c.Name, c.Topic.Name(), sub, r.Process)
	} else {
		sub, err := kafka.NewSubscriber(sc)
		p.Must(err)
		watermill.AddConsumer(router, c.Name, c.Topic.Name(), sub, r.Process)
	}
	tails := &watermill.LogSubscriber{Ahead: r.LostTails, Every: time.Second, Logger: r.Logger}
	watermill.AddLogConsumer(router, c.Name+"-tail", tails, r.ReadUpTo)
	running.Go(func() { _ = router.Run(ctx) })
	return router
}

// flowed waits until an instance has folded all events.
func (p *kafkaPipe) flowed() {
	p.Helper()
	if p.crash != nil && !p.folds {
		p.crash()
	}
	p.start(false, true)
	p.await(p.consumers()...)
}

// await waits until consumers have read all events.
func (p *kafkaPipe) await(consumers ...*consume.Runner) {
	p.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) { // the bound only keeps a broken build from hanging
		behind := ""
		for _, r := range consumers {
			ahead, err := r.Ahead(context.Background())
			p.Must(err)
			if len(ahead) > 0 {
				behind += fmt.Sprint(r.Consumer.Name, " ", ahead, " ")
			}
		}
		if behind == "" {
			return
		}
		if time.Now().After(end) {
			p.Fatalf("the pipe does not end: %s", behind)
		}
	}
}

// kafkaHistory is a closeHistory whose events pass the relay, Kafka and the consumers of an instance, while the history goes on.
type kafkaHistory struct {
	*closeHistory
	pipe *kafkaPipe
}

// step lets one more thing happen.
func (h *kafkaHistory) step(rt *rapid.T) {
	f := h.closeFixture
	switch step := rapid.SampledFrom([]string{"usage", "usage", "usage", "correct", "correct", "close", "freeze", "freeze", "freeze", "reopen", "decide", "policy",
		"retry", "retry", "discard", "flip", "start", "crash", "flow", "flow"}).Draw(rt, "what"); step {
	case "usage":
		for range rapid.IntRange(1, 4).Draw(rt, "n") {
			h.history.Record(rt)
		}
	case "retry":
		if failed := f.deciding.Failed(f.tenant); len(failed) > 0 {
			letter := rapid.IntRange(0, len(failed)-1).Draw(rt, "letter")
			if h.allowed(f.deciding.RetryNow(f.tenant, failed[letter].ID), "dead_letter_not_retryable"); len(f.deciding.Failed(f.tenant)) > 0 {
				h.did("retry")
			}
		}
	case "discard":
		if failed := f.deciding.Failed(f.tenant); len(failed) > 0 {
			h.allowed(f.deciding.Discard(f.tenant, failed[rapid.IntRange(0, len(failed)-1).Draw(rt, "letter")].ID), "dead_letter_has_corrections", "dead_letter_not_discardable")
		}
	case "flip": // while the generation that counts in another way is live, a late verdict is unreconciled
		h.pipe.flowed()
		h.flip()
	case "start":
		h.pipe.start(rapid.Bool().Draw(rt, "mended"), rapid.Bool().Draw(rt, "folds"))
	case "crash":
		if h.pipe.crash != nil {
			h.pipe.crash()
			h.did("crash")
		}
	case "flow":
		h.pipe.flowed()
	default:
		h.decision(rt, step)
	}
}

// finish retries all dead letters by an instance that folds all features, and ends all closes.
func (h *kafkaHistory) finish() {
	if h.pipe.crash != nil {
		h.pipe.crash()
	}
	h.pipe.start(true, true)
	h.finishBy(h.pipe.flowed, h.pipe.flowed)
}

// P8: after each step of any history, whose events pass Kafka and instances that crash meanwhile, the rows are the frozen figures and the adjustments; the
// frozen figures are those of an independent fold, and never change. METERPLEX_TEST_DURATION=10m draws histories for so long.
func TestP8_AnyHistoryOfClosesAddsUpThroughKafka(t *testing.T) {
	tier.AtSize(t)
	localtest.FewChecks(t, 2)
	y := NewRebuilds(t)
	f := closeFixtureOf(y)
	f.deployFold(LargeTwice, FoldLargeTwice)
	f.useTenant(y.Tenants(1)[0])
	other := f.Rebuilt(commands.StartRebuild{Projection: projections.ProjectionUsage})
	f.Must(f.Promote(other)) // a close waits for a rebuild that is open
	f.Must(f.RollBack(other))
	f.reconcile()
	f.periods.Now = func() time.Time { return May.AddDate(0, 4, 0) }
	pipe, done := newKafkaPipe(f), map[string]int{}
	defer func() {
		if pipe.crash != nil {
			pipe.crash()
		}
	}()
	end := time.Now().Add(tier.Duration(t, 0, 0))
	shown := func() bool { return done["freeze"] > 0 && done["crash"] > 0 }
	for round := 0; round == 0 || time.Now().Before(end) || !shown() && round < 10; round++ { // two histories may show neither
		rapid.Check(t, func(rt *rapid.T) { pipe.history(t, rt, other, done) })
	}
	t.Log(done)
	if !shown() {
		t.Error("no period was frozen, or no instance crashed: nothing was shown")
	}
}

// history draws a history of a tenant.
func (p *kafkaPipe) history(t *testing.T, rt *rapid.T, other domain.Rebuild, done map[string]int) {
	f := p.closeFixture
	d := NewHistory(f.Pipeline)
	d.Broken = f.broken
	f.useTenant(d.Tenant)
	f.TB = drawing{t, rt}
	defer func() { f.TB = t }()
	h := &kafkaHistory{&closeHistory{closeFixture: f, history: d, other: other, done: done}, p}
	if rapid.Bool().Draw(rt, "adjusts") {
		h.lateUsage(events.LateUsageAdjust)
	}
	p.start(false, true)
	h.begin(rt)
	for range rapid.IntRange(20, 50).Draw(rt, "steps") {
		h.step(rt)
		h.check()
	}
	h.finish()
	h.check()
	for state := range strings.SplitSeq(h.text(`SELECT coalesce(string_agg(state, ' '), '') FROM adjustments WHERE tenant_id = $1`, d.Tenant), " ") {
		done[state]++
	}
}

// begin closes May, and lets an adjustment wait for the aggregator.
func (h *kafkaHistory) begin(rt *rapid.T) {
	f := h.closeFixture
	f.record("first", "calls", 10)
	for range 3 {
		h.history.Record(rt)
	}
	h.closes = append(h.closes, h.request())
	h.pipe.flowed()
	h.freeze()
	h.check()
	h.pipe.crash()
	h.pipe.start(false, false)
	f.Append(Correction(f.tenant, "late", "calls", "first", 4).Pending)
	h.pipe.await(f.Validating)
	h.check()
}
