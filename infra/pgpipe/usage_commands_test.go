package pgpipe_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections/validate"
)

// Usage can also arrive as messages if PostgreSQL is the pipe: a producer publishes to the topic's table,
// and two groups read each message.
func TestP2_UsageAsCommandsWithoutKafka(t *testing.T) {
	w := newCommandsWorld(t)
	tenant := w.subscribed(domain.Feature{Type: domain.FeatureMetered}, domain.Entitlement{})
	for n := range 30 {
		for _, value := range []string{
			fmt.Sprintf(`{"eventId":"e%d","feature":"calls","amount":1,"timestamp":%q}`, n, time.Now().UTC().Format(time.RFC3339)),
			fmt.Sprintf(`{"eventId":"e%d","feature":"nothing","amount":1,"timestamp":%q}`, n, time.Now().UTC().Format(time.RFC3339)), `{`} {
			w.publish(tenant, fmt.Sprint(n, len(value)), value)
		}
	}
	for _, group := range []string{"first", "second"} {
		w.drain(group, 90)
	}
	var accepted, refused, inbox int
	if err := w.pool.QueryRow(t.Context(),
		`SELECT count(*) FILTER (WHERE subject = 1), count(*) FILTER (WHERE subject = 7), (SELECT count(*) FROM inbox) FROM event_log_rows`).Scan(&accepted, &refused, &inbox); err != nil {
		t.Fatal(err)
	}
	// The second message of each three repeats an eventId: a conflict, not a refusal.
	if accepted != 30 || refused != 30 || inbox != 30 {
		t.Errorf("%d accepted, %d refused, %d in the inbox; want 30 of each", accepted, refused, inbox)
	}
}

// Two messages without an id are two messages, also if they have the same content: what was refused before the operator repaired its cause
// is accepted when it is sent again. A message that is delivered again stays refused.
func TestP7_AMessageWithoutAnIDIsDecidedAgainWhenItIsSentAgain(t *testing.T) {
	w := newCommandsWorld(t)
	tenant := w.subscribed(domain.Feature{Type: domain.FeatureMetered}, domain.Entitlement{})
	set := func(status string) {
		must.OK(w, w.change(func(c *catalogue.Commands, r commands.Request) error {
			_, err := c.ChangeTenant(t.Context(), r, tenant, catalogue.ChangeTenant{Status: &status})
			return err
		}))
	}
	usage := fmt.Sprintf(`{"eventId":"e","feature":"calls","amount":1,"timestamp":%q}`, time.Now().UTC().Format(time.RFC3339))
	publishBatch := func() {
		must.OK(w, watermill.Topics{Publisher: w.publisher}.Publish(t.Context(),
			[]events.Record{{Topic: events.TopicUsageCommands, Key: []byte(tenant.String()), Value: []byte(usage),
				Headers: []events.Header{{Key: metering.HeaderMessageID}}}}))
	}
	set(domain.TenantSuspended)
	w.publish(tenant, "", usage)
	publishBatch()
	w.drain("first", 2)
	set(domain.TenantActive)
	w.publish(tenant, "", usage)
	publishBatch()
	for _, group := range []string{"first", "second"} {
		w.drain(group, map[string]int{"first": 2, "second": 4}[group])
	}
	var accepted, refused, names int
	if err := w.pool.QueryRow(t.Context(),
		`SELECT count(*) FILTER (WHERE subject = 1), count(*) FILTER (WHERE subject = 7),
			count(DISTINCT payload(l) ->> 'messageId') FILTER (WHERE subject = 7)
 FROM event_log_rows l`).Scan(&accepted, &refused, &names); err != nil {
		t.Fatal(err)
	}
	if accepted != 1 || refused != 2 || names != 2 {
		t.Errorf("%d accepted, %d refused under %d names; want 1, 2 and 2", accepted, refused, names)
	}
}

// commandsWorld is a database whose pipe is PostgreSQL, with a producer of messages.
type commandsWorld struct {
	*testing.T
	cfg       pgpipe.Config
	pool      *pgxpool.Pool
	log       *eventlog.Log
	store     *store.Store
	publisher message.Publisher
}

func newCommandsWorld(t *testing.T) *commandsWorld {
	t.Helper()
	w := &commandsWorld{T: t}
	url, owner := migrated(t)
	must.OK(w, pgpipe.Ensure(t.Context(), pgpipe.Config{DB: owner, Logger: logger()}))
	var err error
	w.pool, err = postgres.Open(t.Context(), postgres.Config{URL: url})
	must.OK(w, err)
	t.Cleanup(w.pool.Close)
	w.log, err = eventlog.New(t.Context(), w.pool,
		eventlog.Config{Producer: events.Producer{Service: "meterplex", Instance: "test", Commit: "x"},
			Histories: new(validate.HistoryReader), Written: localtest.CheckPayloads(t).Written})
	must.OK(w, err)
	t.Cleanup(w.log.Close)
	w.store = store.New(w.pool, w.log, store.Config{})
	worker, err := postgres.WorkerDB(postgres.Config{URL: url, KeepPlans: true})
	must.OK(w, err)
	t.Cleanup(func() { worker.Close() })
	w.cfg = pgpipe.Config{DB: worker, Logger: logger()}
	p := newPublisher(t, w.cfg)
	t.Cleanup(func() { p.Close() })
	w.publisher = p
	return w
}

func (w *commandsWorld) change(do func(*catalogue.Commands, commands.Request) error) error {
	return do(&catalogue.Commands{Store: w.store, Now: time.Now, NewID: func() uuid.UUID {
		return uuid.Must(uuid.NewV7())
	}}, commands.Request{})
}

// subscribed creates a tenant with access to "calls".
func (w *commandsWorld) subscribed(f domain.Feature, e domain.Entitlement) (id uuid.UUID) {
	w.Helper()
	f.LookupKey, f.Name, e.Feature = "calls", "Calls", "calls"
	must.OK(w, w.change(func(c *catalogue.Commands, r commands.Request) error {
		_, _, err := c.PutFeature(w.Context(), r, f)
		must.OK(w, err)
		_, _, err = c.PutPlan(w.Context(), r, domain.Plan{Key: "p", Name: "P", Entitlements: []domain.Entitlement{e}})
		must.OK(w, err)
		tenant, err := c.CreateTenant(w.Context(), r, catalogue.CreateTenant{Name: "T", Class: "small"})
		must.OK(w, err)
		id = tenant.ID
		_, err = c.CreateSubscription(w.Context(), r, id, catalogue.CreateSubscription{Plan: "p"})
		return err
	}))
	return id
}

func (w *commandsWorld) publish(tenant uuid.UUID, id, value string) {
	w.Helper()
	m := message.NewMessage("", []byte(value))
	m.Metadata = message.Metadata{events.HeaderTenant: tenant.String()}
	if id != "" {
		m.Metadata[metering.HeaderMessageID] = id
	}
	must.OK(w, w.publisher.Publish(events.TopicUsageCommands.Name(), m))
}

// drain processes n messages as a group.
func (w *commandsWorld) drain(group string, n int) {
	w.Helper()
	sub, err := pgpipe.NewSubscriber(pgpipe.SubscriberConfig{Config: w.cfg, Group: group})
	must.OK(w, err)
	defer sub.Close()
	messages, err := sub.Subscribe(context.Background(), events.TopicUsageCommands.Name())
	must.OK(w, err)
	consumer := &metering.UsageCommands{Tenants: &store.Catalogue{Pool: w.pool}, Ingest: &metering.IngestUsage{
		Log: w.log, Histories: w.store.Histories, Now: time.Now, Window: domain.TimestampWindow{Ahead: time.Minute, Behind: time.Hour},
		NewID: func(time.Time) uuid.UUID { return uuid.Must(uuid.NewV7()) },
	}}
	for n > 0 {
		msg := <-messages
		records, err := watermill.Records(msg)
		if err == nil {
			err = consumer.Process(msg.Context(), records)
		}
		must.OK(w, err)
		n -= len(records)
		msg.Ack()
	}
}
