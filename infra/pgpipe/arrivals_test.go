package pgpipe

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/infra/watermill/pipetest"
)

// TestArrivalsOfRows: rows are announced once they are committed, and read as soon as no older transaction hides them.
func TestArrivalsOfRows(t *testing.T) {
	owner, err := postgres.OwnerDB(localtest.Migrated(t, postgres.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	cfg := Config{DB: owner, Arrivals: new(Arrivals), Logger: slog.New(slog.DiscardHandler)}
	if err := Ensure(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	publisher, err := NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer publisher.Close()
	subscriber, err := NewSubscriber(SubscriberConfig{Config: cfg, Group: "g", IdleInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer subscriber.Close()
	messages, err := subscriber.Subscribe(t.Context(), "usage.raw")
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		hides, err := owner.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer hides.Rollback()
		if _, err := hides.Exec("SELECT pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
		arrival := cfg.Arrivals.of("usage.raw")
		if err := pipetest.Publish(t.Context(), publisher, pipetest.Make(events.TopicUsageRaw, n, 1)); err != nil {
			t.Fatal(err)
		}
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
		if err := hides.Rollback(); err != nil {
			t.Fatal(err)
		}
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
