package pgpipe_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/watermill"
)

// Usage can also arrive as messages if PostgreSQL is the pipe: a producer publishes to the topic's table,
// and two groups read each message.
func TestP2_UsageAsCommandsWithoutKafka(t *testing.T) {
	url, owner := migrated(t)
	if err := pgpipe.Ensure(t.Context(), pgpipe.Config{DB: owner, Logger: logger()}); err != nil {
		t.Fatal(err)
	}
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	log, err := eventlog.New(t.Context(), pool, eventlog.Config{Producer: events.Producer{Service: "meterplex", Instance: "test", Commit: "x"}, Written: localtest.CheckPayloads(t).Written})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	changes := store.New(pool, log, store.Config{})
	tenant := subscribed(t, changes)
	worker, err := postgres.WorkerDB(postgres.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	cfg := pgpipe.Config{DB: worker, Logger: logger()}

	p := newPublisher(t, cfg)
	defer p.Close()
	for n := range 30 {
		for _, value := range []string{
			fmt.Sprintf(`{"eventId":"e%d","feature":"calls","amount":1,"timestamp":%q}`, n, time.Now().UTC().Format(time.RFC3339)),
			fmt.Sprintf(`{"eventId":"e%d","feature":"nothing","amount":1,"timestamp":%q}`, n, time.Now().UTC().Format(time.RFC3339)), `{`} {
			m := message.NewMessage("", []byte(value))
			m.Metadata = message.Metadata{events.HeaderTenant: tenant.String(), commands.HeaderMessageID: fmt.Sprint(n, len(value))}
			if err := p.Publish("usage.commands", m); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, group := range []string{"first", "second"} {
		drainCommands(t, cfg, group, log, changes.Histories, &store.Catalogue{Pool: pool}, 90)
	}
	var accepted, refused, inbox int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE subject = 1), count(*) FILTER (WHERE subject = 7), (SELECT count(*) FROM inbox) FROM event_log_rows`).Scan(&accepted, &refused, &inbox); err != nil {
		t.Fatal(err)
	}
	// The second message of each three repeats an eventId: a conflict, not a refusal.
	if accepted != 30 || refused != 30 || inbox != 30 {
		t.Errorf("%d accepted, %d refused, %d in the inbox; want 30 of each", accepted, refused, inbox)
	}
}

// subscribed creates a tenant with access to "calls".
func subscribed(t *testing.T, store *store.Store) uuid.UUID {
	t.Helper()
	c := &commands.Catalogue{Store: store, Now: time.Now, NewID: func() uuid.UUID { return uuid.Must(uuid.NewV7()) }}
	by := commands.Caller{}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := c.PutFeature(t.Context(), commands.Request{By: by}, domain.Feature{LookupKey: "calls", Name: "Calls", Type: domain.FeatureMetered})
	must(err)
	_, _, err = c.PutPlan(t.Context(), commands.Request{By: by}, domain.Plan{Key: "p", Name: "P", Entitlements: []domain.Entitlement{{Feature: "calls"}}})
	must(err)
	tenant, err := c.CreateTenant(t.Context(), commands.Request{By: by}, commands.CreateTenant{Name: "T", Class: "small"})
	must(err)
	_, err = c.CreateSubscription(t.Context(), commands.Request{By: by}, tenant.ID, commands.CreateSubscription{Plan: "p"})
	must(err)
	return tenant.ID
}

// drainCommands processes n messages as a group.
func drainCommands(t *testing.T, cfg pgpipe.Config, group string, log *eventlog.Log, histories commands.Histories, tenants commands.CatalogueReader, n int) {
	t.Helper()
	sub, err := pgpipe.NewSubscriber(pgpipe.SubscriberConfig{Config: cfg, Group: group})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	messages, err := sub.Subscribe(context.Background(), events.TopicUsageCommands.Name())
	if err != nil {
		t.Fatal(err)
	}
	consumer := &commands.UsageCommands{Tenants: tenants, Ingest: &commands.IngestUsage{
		Log: log, Histories: histories, Now: time.Now, Window: domain.TimestampWindow{Ahead: time.Minute, Behind: time.Hour}, NewID: func(time.Time) uuid.UUID { return uuid.Must(uuid.NewV7()) },
	}}
	for n > 0 {
		msg := <-messages
		records, err := watermill.Records(msg)
		if err == nil {
			err = consumer.Process(msg.Context(), records)
		}
		if err != nil {
			t.Fatal(err)
		}
		n -= len(records)
		msg.Ack()
	}
}
