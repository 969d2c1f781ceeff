package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	sending "github.com/meterplex/meterplex/infra/webhook"
	"github.com/meterplex/meterplex/internal/must"
)

// hookFixture has tenants, and a sender that reaches the loopback.
type hookFixture struct {
	*testing.T
	store    *Store
	pool     *pgxpool.Pool
	url      string
	webhooks *webhooks.Commands
}

func newHookFixture(t *testing.T) *hookFixture {
	s, _, pool, url := openStore(t)
	f := &hookFixture{T: t, store: s, pool: pool, url: url}
	f.webhooks = f.on(s)
	return f
}

// on returns the command of webhooks of an instance.
func (f *hookFixture) on(s *Store) *webhooks.Commands {
	n := byte(0)
	return &webhooks.Commands{Store: &Webhooks{Store: s, NewID: newID}, Addresses: hookAddresses(), Now: time.Now, NewID: newID,
		NewSecret: func() (b [32]byte) { n++; b[0] = n; copy(b[1:], "canary-of-a-secret"); return b }}
}

func hookAddresses() webhook.Addresses {
	return webhook.Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

func (f *hookFixture) tenant() uuid.UUID {
	f.Helper()
	id := newID()
	must.OK(f, f.store.ChangeCatalogue(f.Context(), id, func(tx catalogue.Tx) error {
		return appendNoun(tx, events.TenantCreated, id, events.Tenant{ID: id, Name: "T", Class: "small", Status: domain.TenantActive,
			Mode: domain.ModeLive, DataResidency: events.ResidencyUnspecified, CreatedAt: time.Now(), LateUsage: events.LateUsageReject})
	}))
	return id
}

// crossed appends threshold.crossed events of a tenant and returns their ids.
func (f *hookFixture) crossed(tenant uuid.UUID, n int) (ids []uuid.UUID) {
	f.Helper()
	must.OK(f, f.store.Change(f.Context(), tenant, func(tx commands.Tx) error {
		ids = nil
		for range n {
			id := newID()
			body, err := codec.EncodePayload(events.ThresholdCrossed, events.CrossedThreshold{ThresholdID: id, Feature: "api_calls",
				PeriodKey: "2026-05", Percent: 80, Amount: 80, Before: "79", After: "80"})
			must.OK(f, err)
			p := events.Pending{EventID: id, Subject: events.ThresholdCrossed, TenantID: tenant, DedupeKey: events.KeyEvent(id),
				Actor:     events.Actor{Type: "service", ID: "test"},
				Residency: events.ResidencyUnspecified, OccurredAt: time.Now().UTC().Truncate(time.Microsecond), Payload: body}
			if _, err := tx.Append(p); err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	}))
	return ids
}

func (f *hookFixture) create(tenant uuid.UUID, url string, types ...string) webhooks.CreatedWebhook {
	f.Helper()
	if types == nil {
		types = []string{webhook.ThresholdCrossed}
	}
	w, err := f.webhooks.Create(f.Context(), commands.Request{}, tenant, url, types)
	must.OK(f, err)
	return w
}

// deliverer returns the deliverer of an instance with short waits.
func (f *hookFixture) deliverer(s *Store) *webhooks.Deliverer {
	sender := sending.NewSender(sending.Config{Addresses: hookAddresses(), Timeout: 5 * time.Second})
	f.Cleanup(sender.Close)
	return &webhooks.Deliverer{Queue: &Webhooks{Store: s, NewID: newID}, Webhooks: f.on(s), Sender: sender, NewID: newID,
		Every:   20 * time.Millisecond,
		Retries: []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 20 * time.Millisecond},
		Logger:  slog.New(slog.DiscardHandler)}
}

// run runs deliverers until stop.
func (f *hookFixture) run(list ...*webhooks.Deliverer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, d := range list {
		running.Go(func() { _ = d.Run(ctx) })
	}
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	f.Cleanup(stop)
	return stop
}

// receiver is an endpoint that keeps what it gets.
type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	got []received
	// answer returns the status of the nth request.
	answer func(n int, r *http.Request) int
}

type received struct {
	id, timestamp, signature string
	body                     []byte
	at                       time.Time
}

func newReceiver(t *testing.T, answer func(n int, r *http.Request) int) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(func() { r.CloseClientConnections(); r.Close() })
	return r
}

func always(status int) func(int, *http.Request) int {
	return func(int, *http.Request) int { return status }
}

func (r *receiver) serve(w http.ResponseWriter, req *http.Request) {
	var body bytes.Buffer
	_, _ = body.ReadFrom(req.Body)
	r.mu.Lock()
	r.got = append(r.got, received{req.Header.Get("webhook-id"), req.Header.Get("webhook-timestamp"), req.Header.Get("webhook-signature"),
		body.Bytes(), time.Now()})
	n := len(r.got)
	r.mu.Unlock()
	w.WriteHeader(r.answer(n, req))
}

func (r *receiver) all() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *receiver) ids() (ids []string) {
	for _, g := range r.all() {
		ids = append(ids, g.id)
	}
	return ids
}

// until waits until a condition holds. It has no time limit: a test that never ends is ended by its package's.
func (f *hookFixture) until(what string, holds func() bool) {
	f.Helper()
	for n := 0; !holds(); n++ {
		if time.Sleep(5 * time.Millisecond); n == 10_000 {
			f.Logf("still waiting: %s", what)
		}
	}
}

func (f *hookFixture) count(sql string, args ...any) int {
	f.Helper()
	return count(f, f.pool, sql, args...)
}

func (f *hookFixture) states(webhook uuid.UUID) (states []string) {
	f.Helper()
	list, err := (&Catalogue{Pool: f.pool}).Deliveries(f.Context(),
		webhooks.DeliveryQuery{WebhookID: webhook, Page: commands.Page{Limit: 1000}})
	must.OK(f, err)
	for _, d := range list {
		states = append(states, d.State)
	}
	return states
}

func (f *hookFixture) noneLeft() bool {
	return f.count(`SELECT count(*) FROM webhook_deliveries WHERE state = 'PENDING'`) == 0
}

func (f *hookFixture) read(tenant, id uuid.UUID) webhook.Webhook {
	f.Helper()
	w, err := (&Catalogue{Pool: f.pool}).Webhook(f.Context(), tenant, id)
	must.OK(f, err)
	if w == nil {
		f.Fatal("the webhook is not there")
	}
	return *w
}

func TestEventsBehindItsCreationReachAWebhook(t *testing.T) {
	f := newHookFixture(t)
	tenant, other := f.tenant(), f.tenant()
	f.crossed(tenant, 2)
	r := newReceiver(t, always(204))
	w := f.create(tenant, r.URL)
	want := f.crossed(tenant, 3)
	f.crossed(other, 1)
	f.run(f.deliverer(f.store))
	f.until("3 deliveries", func() bool { return len(f.states(w.ID)) == 3 && f.noneLeft() })
	if got := r.ids(); len(got) != 3 || got[0] != want[0].String() || got[1] != want[1].String() || got[2] != want[2].String() {
		t.Errorf("%q instead of %q", got, want)
	}
	var body struct {
		Type, Subject, Position string
		ID, TenantID            uuid.UUID
		Timestamp               time.Time
		Data                    events.CrossedThreshold
	}
	must.OK(f, json.Unmarshal(r.all()[0].body, &body))
	if body.Type != "threshold.crossed" || body.Subject != "meterplex.entitlements.threshold.crossed.v1" || body.ID != want[0] ||
		body.TenantID != tenant || body.Data.Percent != 80 || body.Position == "" || body.Timestamp.IsZero() {
		t.Errorf("%s", r.all()[0].body)
	}
	if got := f.read(tenant, w.ID); got.LastSuccessAt == nil || got.FailingSince != nil {
		t.Errorf("%+v", got)
	}
}

// TestEachAttemptHasTheSameIDAndBody fails if an attempt has an id of its own, also one after a replay of a delivery that failed.
func TestEachAttemptHasTheSameIDAndBody(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	r := newReceiver(t, func(n int, _ *http.Request) int { return map[bool]int{true: 503, false: 200}[n <= 4] })
	w := f.create(tenant, r.URL)
	want := f.crossed(tenant, 1)[0].String()
	f.run(f.deliverer(f.store))
	f.until("failed", func() bool { return slices.Equal(f.states(w.ID), []string{"FAILED"}) })
	_, err := f.pool.Exec(t.Context(), `UPDATE webhook_attempts SET duration_ms = 7`)
	must.OK(f, err)
	list, err := (&Catalogue{Pool: f.pool}).Deliveries(t.Context(), webhooks.DeliveryQuery{WebhookID: w.ID, Page: commands.Page{Limit: 10}})
	if must.OK(f, err); len(r.all()) != 4 || len(list) != 1 || list[0].Sent != 4 || len(list[0].Last) != 4 || list[0].Last[0].N != 1 ||
		list[0].Last[0].At.IsZero() || list[0].Last[0].Status != 503 || list[0].Last[0].DurationMS != 7 || list[0].Last[0].Error == "" {
		t.Fatalf("%d requests, %+v", len(r.all()), list)
	}
	if _, err := f.webhooks.Replay(t.Context(), commands.Request{}, f.tenant(), list[0].ID); err == nil {
		t.Error("another tenant replayed a delivery")
	}
	_, err = f.webhooks.Replay(t.Context(), commands.Request{}, tenant, list[0].ID)
	must.OK(f, err)
	f.until("delivered", func() bool { return slices.Equal(f.states(w.ID), []string{"DELIVERED"}) })
	for _, g := range r.all() {
		if g.id != want || !bytes.Equal(g.body, r.all()[0].body) {
			t.Errorf("an attempt has another id or body: %s %s instead of %s %s", g.id, g.body, want, r.all()[0].body)
		}
	}
}

// lastChange compares the last event of a webhook: its status, the reason of the request, and that of the service.
func (f *hookFixture) lastChange(id uuid.UUID, status, reason, disabledFor string) {
	f.Helper()
	var text string
	must.OK(f, f.pool.QueryRow(f.Context(), events.SQL(`SELECT payload(l)::text FROM event_log_rows l
		WHERE subject = {notifications.webhook.changed} ORDER BY recorded_at DESC, position DESC LIMIT 1`)).Scan(&text))
	var changed struct {
		events.ChangedWebhook
		Reason string
	}
	must.OK(f, json.Unmarshal([]byte(text), &changed))
	if changed.ID != id || changed.Status != status || changed.Reason != reason || (changed.DisabledFor == nil) != (disabledFor == "") ||
		changed.DisabledFor != nil && *changed.DisabledFor != disabledFor {
		f.Errorf("the last event is %s", text)
	}
}

func TestFiveDaysWithoutASuccessDisableAWebhook(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	r := newReceiver(t, always(500))
	w := f.create(tenant, r.URL)
	_, err := f.pool.Exec(t.Context(), `UPDATE webhooks SET failing_since = now() - interval '5 days' WHERE id = $1`, w.ID)
	must.OK(f, err)
	f.crossed(tenant, 1)
	f.run(f.deliverer(f.store))
	f.until("disabled", func() bool { return f.read(tenant, w.ID).Status == events.WebhookDisabled })
	f.lastChange(w.ID, events.WebhookDisabled, "", webhook.Failing)
}

// TestAllowedNetworksAreForOperators: a tenant's key sets no URL to a network of METERPLEX_WEBHOOK_ALLOW. Changes of other members keep who
// set the URL.
func TestAllowedNetworksAreForOperators(t *testing.T) {
	f := newHookFixture(t)
	tenant, inside, outside := f.tenant(), "http://127.0.0.1:1/x", "https://example.com/x"
	own := commands.Request{By: commands.Caller{TenantID: tenant, KeyID: newID()}}
	var refusal *domain.Error
	if _, err := f.webhooks.Create(t.Context(), own, tenant, inside, []string{webhook.ThresholdCrossed}); !errors.As(err, &refusal) ||
		refusal.Code != "url_invalid" {
		t.Errorf("a tenant's URL: %v", err)
	}
	w := f.create(tenant, inside)
	types := []string{webhook.PushFailed}
	for _, c := range []struct {
		req       commands.Request
		in        webhooks.ChangeWebhook
		operators bool
	}{{own, webhooks.ChangeWebhook{Events: &types}, true}, {own, webhooks.ChangeWebhook{URL: &inside}, true},
		{own, webhooks.ChangeWebhook{URL: &outside}, false}, {commands.Request{}, webhooks.ChangeWebhook{URL: &outside}, true}} {
		_, err := f.webhooks.Change(t.Context(), c.req, tenant, w.ID, c.in)
		must.OK(t, err)
		if got := f.read(tenant, w.ID).Operators; got != c.operators {
			t.Errorf("%+v: an operator's %v, want %v", c.in, got, c.operators)
		}
	}
	lease, operators := newID(), false
	_, err := f.pool.Exec(t.Context(), `UPDATE webhooks SET lease = $2 WHERE id = $1`, w.ID, lease)
	must.OK(t, err)
	must.OK(t, f.pool.QueryRow(t.Context(), renewWebhookSQL, w.ID, lease, time.Minute).Scan(&w.URL, &operators))
	if !operators {
		t.Error("a delivery does not know that an operator set the URL")
	}
}
