package pgpipe

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// TestArrivalsOfRows: rows are announced once they are committed, and read as soon as no older transaction hides them.
func TestArrivalsOfRows(t *testing.T) {
	owner, err := postgres.OwnerDB(localtest.Migrated(t, postgres.Migrate))
	must.OK(t, err)
	defer owner.Close()
	cfg := Config{DB: owner, Arrivals: new(Arrivals), Logger: slog.New(slog.DiscardHandler)}
	must.OK(t, Ensure(t.Context(), cfg))
	publisher, err := NewPublisher(cfg)
	must.OK(t, err)
	defer publisher.Close()
	subscriber, err := NewSubscriber(SubscriberConfig{Config: cfg, Group: "g", IdleInterval: time.Hour})
	must.OK(t, err)
	defer subscriber.Close()
	messages, err := subscriber.Subscribe(t.Context(), "usage.raw")
	must.OK(t, err)
	for n := range 3 {
		hides, err := owner.Begin()
		must.OK(t, err)
		defer hides.Rollback()
		if _, err := hides.Exec("SELECT pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
		arrival := cfg.Arrivals.of("usage.raw")
		must.OK(t, pipetest.Publish(t.Context(), publisher, pipetest.Make(events.TopicUsageRaw, n, 1)))
		select {
		case <-arrival:
		default:
			t.Fatal("a row was published that nothing announced")
		}
		time.Sleep(time.Duration(n) * 100 * time.Millisecond)
		select {
		case <-messages:
			t.Fatal("a row was read beside an older open transaction")
		default:
		}
		must.OK(t, hides.Rollback())
		acknowledge(t, messages)
	}
}

func acknowledge(t *testing.T, messages <-chan *message.Message) {
	t.Helper()
	select {
	case msg := <-messages:
		if records, err := watermill.Records(msg); err != nil || len(records) != 1 {
			t.Errorf("%d records, want 1: %v", len(records), err)
		}
		msg.Ack()
	case <-time.After(2 * time.Minute):
		t.Fatal("no row was read")
	}
}

// TestKeptPlansOfAnEmptyPipeAreThoseOfALargeOne: a plan from when a topic had no rows is kept after it has many, and must still be a
// range scan of the key.
func TestKeptPlansOfAnEmptyPipeAreThoseOfALargeOne(t *testing.T) {
	tier.AtSize(t)
	url := localtest.Migrated(t, postgres.Migrate)
	owner, err := postgres.OwnerDB(url)
	must.OK(t, err)
	t.Cleanup(func() { owner.Close() })
	cfg := Config{DB: owner, Logger: slog.New(slog.DiscardHandler)}
	must.OK(t, Ensure(t.Context(), cfg))
	const topic = "usage.raw"
	polled := cfg.schema().SelectQuery(topic, "g", cfg.offsets()).Query
	for name, statement := range map[string]string{
		"poll": polled, "lag": fmt.Sprintf(lagRows, cfg.messagesTable(topic), cfg.offsetsTable(topic)),
		"trim":     fmt.Sprintf(trimRows, cfg.messagesTable(topic), cfg.offsetsTable(topic)),
		"restored": cfg.format(topic, lastRestored),
	} {
		plan := keptPlan(t, url, statement)
		for _, bad := range []string{"Seq Scan on pipe_usage_raw", "Bitmap", "Hash Join", "Merge Join"} {
			if strings.Contains(plan, bad) {
				t.Errorf("%s: %s in\n%s", name, bad, plan)
			}
		}
		if !strings.Contains(plan, `Scan using pipe_usage_raw_pkey`) {
			t.Errorf("%s is no stretch of the key:\n%s", name, plan)
		}
	}
}

// keptPlan returns the plan of a statement in a session as those of the service's readers.
func keptPlan(t *testing.T, url, statement string) (plan string) {
	t.Helper()
	db, err := postgres.WorkerDB(postgres.Config{URL: url, KeepPlans: true})
	must.OK(t, err)
	defer db.Close()
	conn, err := db.Conn(t.Context())
	must.OK(t, err)
	defer conn.Close()
	if err := conn.Raw(func(c any) error {
		plan = localtest.Plan(t, c.(*stdlib.Conn).Conn(), statement)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return plan
}
