package projections_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/local/localtest/kafkatest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
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
	f.must(err)
	defer admin.Close()
	f.must(admin.Ensure(context.Background()))
	return p
}

// consumers are those that the close of a period depends on, in the order of an event's path.
func (p *kafkaPipe) consumers() []*consume.Runner {
	return []*consume.Runner{p.deciding.executing, p.validating, p.broken, p.lettering}
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
	pool, err := postgres.Open(context.Background(), postgres.Config{URL: p.url, ApplicationName: name})
	p.must(err)
	log, err := eventlog.New(context.Background(), pool, eventlog.Config{Producer: events.Producer{Service: "test", Instance: name, Commit: "0"}, Written: p.payloads.Written})
	p.must(err)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var parts []io.Closer
	publisher, err := kafka.NewPublisher(p.cfg)
	p.must(err)
	carry := &relay.Relay{Pool: pool, Log: log, Appender: log, Publisher: publisher, Instance: name, NewID: newID, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		LeaseTTL: time.Second, CloseGrace: time.Second}
	running.Go(func() { _ = carry.Run(ctx) })
	for _, of := range p.consumers() {
		c := of.Consumer
		if of == p.broken && !folds {
			continue
		}
		if h, ok := c.Handler.(poisonedHandler); ok && mended {
			c.Handler = h.Handler
		}
		parts = append(parts, p.consume(ctx, &running, pool, log, c))
	}
	p.crash = func() {
		owner, err := postgres.OwnerDB(p.url)
		p.must(err)
		_, err = owner.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, name)
		p.must(err)
		p.must(owner.Close())
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
	r := &consume.Runner{Pool: pool, Log: log, Consumer: c, NewID: newID, Logger: slog.New(slog.DiscardHandler), Observe: p.payloads.Observer(nil)}
	router, err := watermill.NewRouter(r.Logger, nil)
	p.must(err)
	sc := kafka.SubscriberConfig{Config: p.cfg, Group: c.Name, MaxRecordsPerPartition: c.MaxPerPartition}
	if c.Topic.LowRate() {
		sub, err := kafka.NewLowRateSubscriber(sc)
		p.must(err)
		watermill.AddConsumer(router, c.Name, c.Topic.Name(), sub, r.Process)
	} else {
		sub, err := kafka.NewSubscriber(sc)
		p.must(err)
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
			p.must(err)
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
