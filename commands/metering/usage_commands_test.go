package metering

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// ledger is a log that stores its events by key.
type ledger struct {
	mu   sync.Mutex
	kept map[string]events.Pending
	err  error
}

func (l *ledger) Admit(uuid.UUID) error { return nil }

func (l *ledger) Submit(_ context.Context, tenant uuid.UUID, batch []Submitted) ([]Outcome, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	outcomes := make([]Outcome, len(batch))
	for i := range batch {
		p := &batch[i].Pending
		outcomes[i].Status = Appended
		if refusal := batch[i].Refusal; refusal != nil {
			refused := batch[i].Refuse(refusal)
			p, outcomes[i] = &refused, Outcome{Status: Refused, Refusal: refusal}
		}
		l.kept[tenant.String()+" "+p.DedupeKey] = *p
	}
	return outcomes, nil
}

func (l *ledger) refused(t *testing.T) (list []events.RefusedUsage) {
	t.Helper()
	for _, p := range l.kept {
		if p.Subject == events.UsageRefused {
			var r events.RefusedUsage
			if err := json.Unmarshal(p.Payload, &r); err != nil {
				t.Fatal(err)
			}
			list = append(list, r)
		}
	}
	return list
}

// directory is a catalogue that has only tenants.
type directory struct {
	tenants map[uuid.UUID]string // status
	err     error
}

func (d *directory) Tenant(_ context.Context, id uuid.UUID) (*domain.Tenant, error) {
	status, ok := d.tenants[id]
	if !ok || d.err != nil {
		return nil, d.err
	}
	return &domain.Tenant{ID: id, Status: status, DataResidency: "eu-central-1"}, nil
}

var (
	activeTenant    = uuid.MustParse("01900000-0000-7000-8000-00000000000a")
	suspendedTenant = uuid.MustParse("01900000-0000-7000-8000-00000000000b")
)

func newUsageCommands() (*UsageCommands, *ledger, *directory) {
	l := &ledger{kept: map[string]events.Pending{}}
	d := &directory{tenants: map[uuid.UUID]string{activeTenant: domain.TenantActive, suspendedTenant: domain.TenantSuspended}}
	s := &fakeLog{cached: active(), fresh: active()}
	return &UsageCommands{
		Ingest: &IngestUsage{
			Log:       l,
			Histories: s,
			Now:       func() time.Time { return noon },
			Window:    domain.TimestampWindow{Ahead: time.Minute, Behind: time.Hour},
			NewID:     newID,
		},
		Tenants: d,
	}, l, d
}

func record(tenant, value string, offset int64, header ...string) events.Record {
	r := events.Record{Topic: events.TopicUsageCommands, Partition: 3, Offset: offset, Key: []byte(tenant), Value: []byte(value)}
	for n := 0; n+1 < len(header); n += 2 {
		r.Headers = append(r.Headers, events.Header{Key: header[n], Value: []byte(header[n+1])})
	}
	return r
}

const oneCall = `{"eventId":"e1","feature":"api_calls","amount":5,"timestamp":"2026-05-04T12:00:00Z"}`

const oneCloudEvent = `{"specversion":"1.0","id":"e1","source":"/x","type":"api_calls","time":"2026-05-04T12:00:00Z","data":{"amount":5}}`

// Contents of messages, and their refusals.
func TestMessagesOfUsage(t *testing.T) {
	binary := []string{
		"mp-message-id",
		"usage.commands/3/7",
		"ce_specversion",
		"1.0",
		"ce_source",
		"/x",
		"ce_type",
		"api_calls",
		"ce_time",
		"2026-05-04T12:00:00Z",
		"ce_id",
		"e1",
	}
	batch := `{"events":[` + oneCall + `,{"eventId":"e2","feature":"api_calls","amount":0,"timestamp":"2026-05-04T12:00:00Z"}]}`
	for name, c := range map[string]struct {
		record  events.Record
		tenant  uuid.UUID
		taken   int
		refused events.RefusedUsage
	}{
		"one event": {record(activeTenant.String(), oneCall, 7), activeTenant, 1, events.RefusedUsage{}},
		"by header": {record("anything", oneCall, 7, "mp-tenant", activeTenant.String()), activeTenant, 1, events.RefusedUsage{}},
		"a batch": {record(activeTenant.String(), batch, 7), activeTenant, 1,
			events.RefusedUsage{Code: "amount_invalid", Pointer: "/events/1/amount", EventID: "e2", Index: 1}},
		"one of one": {record(activeTenant.String(), strings.Replace(oneCall, "5", "5.0", 1), 7), activeTenant, 0,
			events.RefusedUsage{Code: "amount_invalid", Pointer: "/amount", EventID: "e1"}},
		"policy": {record(activeTenant.String(), strings.Replace(oneCall, "api_calls", "other", 1), 7), activeTenant, 0,
			events.RefusedUsage{Code: "feature_not_found", Pointer: "/feature", EventID: "e1", Feature: "other"}},
		"suspended": {record(suspendedTenant.String(), oneCall, 7), suspendedTenant, 0, events.RefusedUsage{Code: "tenant_suspended",
			EventID: "e1", Feature: "api_calls"}},
		"nobody": {record("nobody", oneCall, 7), events.Platform, 0, events.RefusedUsage{Code: "tenant_not_found", Index: -1,
			Tenant: "nobody"}},
		"braces": {record("{"+activeTenant.String()+"}", oneCall, 7), events.Platform, 0,
			events.RefusedUsage{Code: "tenant_not_found", Index: -1, Tenant: "{" + activeTenant.String() + "}"}},
		"unprintable": {record("\x00é", oneCall, 7), events.Platform, 0, events.RefusedUsage{Code: "tenant_not_found", Index: -1,
			Tenant: "??"}},
		"no JSON": {record(activeTenant.String(), "{", 7), activeTenant, 0, events.RefusedUsage{Code: "malformed_json", Index: -1}},
		"out of its box": {record(activeTenant.String(), `{}],"events":[{}`, 7), activeTenant, 0,
			events.RefusedUsage{Code: "malformed_json", Index: -1}},
		"empty": {record(activeTenant.String(), `{"events":[]}`, 7), activeTenant, 0,
			events.RefusedUsage{Code: "batch_empty", Pointer: "/events", Index: -1}},
		"structured": {record(activeTenant.String(), oneCloudEvent, 7, "content-type", "application/cloudevents+json; charset=UTF-8"),
			activeTenant, 1, events.RefusedUsage{}},
		"structured, refused": {record(activeTenant.String(), strings.Replace(oneCloudEvent, ":5", ":0.5", 1), 7, "content-type",
			"application/cloudevents+json"), activeTenant, 0,
			events.RefusedUsage{Code: "amount_invalid", Pointer: "/data/amount", EventID: "e1"}},
		"no CloudEvent": {record(activeTenant.String(), oneCall, 7, "content-type", "application/cloudevents+json"), activeTenant, 0,
			events.RefusedUsage{Code: "member_missing", Pointer: "/specversion", Index: -1}},
		"CloudEvents": {record(activeTenant.String(), "["+oneCloudEvent+",{}]", 7, "content-type",
			"application/cloudevents-batch+json"), activeTenant, 1, events.RefusedUsage{Code: "member_missing", Pointer: "/1/specversion",
			Index: 1}},
		"binary": {record(activeTenant.String(), `{"amount":5}`, 7, binary...), activeTenant, 1, events.RefusedUsage{}},
		"binary, typed": {record(activeTenant.String(), `{"amount":5}`, 7, append(binary, "content-type", "application/json")...),
			activeTenant, 1, events.RefusedUsage{}},
		"binary, refused": {record(activeTenant.String(), `{"amount":0.5}`, 7, binary...), activeTenant, 0,
			events.RefusedUsage{Code: "amount_invalid", Pointer: "/amount", EventID: "e1"}},
		"binary, no id": {record(activeTenant.String(), `{"amount":5}`, 7, binary[:len(binary)-2]...), activeTenant, 0,
			events.RefusedUsage{Code: "member_missing", Index: -1}},
		"huge": {record(activeTenant.String(), `"`+strings.Repeat("x", maxMessage)+`"`, 7), activeTenant, 0,
			events.RefusedUsage{Code: "body_too_large", Index: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			usage, log, _ := newUsageCommands()
			if err := usage.Process(t.Context(), []events.Record{c.record}); err != nil {
				t.Fatal(err)
			}
			refusals := log.refused(t)
			if taken := len(log.kept) - len(refusals); taken != c.taken || (len(refusals) > 0) != (c.refused.Code != "") {
				t.Fatalf("%d taken, refused %+v", taken, refusals)
			}
			for key, p := range log.kept {
				if !strings.HasPrefix(key, c.tenant.String()) {
					t.Errorf("%s is another tenant's", key)
				}
				if (p.Residency == "eu-central-1") != (c.tenant != events.Platform) {
					t.Errorf("%s has the residency %q", key, p.Residency)
				}
			}
			if len(refusals) == 0 {
				return
			}
			got := refusals[0]
			if got.MessageID != "usage.commands/3/7" || got.KafkaPartition != 3 || got.KafkaOffset != 7 ||
				got.Bytes != len(c.record.Value) ||
				got.Reason == "" {
				t.Errorf("%+v", got)
			}
			want := c.refused
			if got.Code != want.Code || got.Pointer != want.Pointer || got.EventID != want.EventID || got.Feature != want.Feature ||
				got.Index != want.Index ||
				got.Tenant != want.Tenant {
				t.Errorf("refused %+v, want %+v", got, want)
			}
			if len(got.Payload) > maxRefusedCopy {
				t.Errorf("a payload of %d bytes was copied", len(got.Payload))
			}
		})
	}
}

// The producer's id identifies a message, else its offset; in both cases together with
// the content, because offsets restart after a broker lost its data.
func TestMessagesAreIdentifiedByIDAndContent(t *testing.T) {
	usage, log, _ := newUsageCommands()
	bad := func(n string) string { return `{"events":[{"eventId":"` + n + `"}]}` }
	for _, r := range []events.Record{
		record(activeTenant.String(), bad("a"), 7), record(activeTenant.String(), bad("a"), 7), // delivered twice
		record(activeTenant.String(), bad("b"), 7), // the same offset again
		record(activeTenant.String(), bad("a"), 8), // the same content at another offset
		record(activeTenant.String(), bad("c"), 9, HeaderMessageID, "m1"), record(activeTenant.String(), bad("c"), 10, HeaderMessageID,
			"m1"),
		record(activeTenant.String(), bad("c"), 11, "ce_id", "1", "ce_source", "/s"), record(activeTenant.String(), bad("c"), 12, "ce_id",
			"1", "ce_source", "/t"),
		record(activeTenant.String(), bad("c"), 13, HeaderMessageID, strings.Repeat("long", 100)),
		record(activeTenant.String(), bad("c"), 14, HeaderMessageID, "\x00\xff"),
		record(activeTenant.String(), bad("d"), -1), record(activeTenant.String(), bad("d"), -1),
	} {
		if err := usage.Process(t.Context(), []events.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(log.kept); n != 9 {
		t.Errorf("%d messages were told apart, want 9", n)
	}
	for key := range log.kept {
		if len(key) > 400 || strings.ContainsRune(key, 0) || !utf8.ValidString(key) {
			t.Errorf("the key %q cannot be kept", key)
		}
	}
}

// If the store or the catalogue is unavailable, all messages are delivered again.
// The messages of a tenant are decided in their order, however its id is written.
func TestP10_MessagesOfATenantStayInOrder(t *testing.T) {
	small, capital := activeTenant.String(), strings.ToUpper(activeTenant.String())
	groups := byTenant(
		[]events.Record{
			record(small, oneCall, 1),
			record("other", oneCall, 2),
			record("", oneCall, 3, "mp-tenant", capital),
			record(capital, oneCall, 4),
		},
	)
	if len(groups) != 2 || groups[0].named != small || len(groups[0].messages) != 3 || groups[1].named != "other" {
		t.Errorf("%+v", groups)
	}
	for i, m := range groups[0].messages[1:] {
		if before := groups[0].messages[i]; before.Offset >= m.Offset {
			t.Errorf("%d before %d", before.Offset, m.Offset)
		}
	}
}

func TestOutagesAreNotRefusals(t *testing.T) {
	usage, log, catalogue := newUsageCommands()
	batch := []events.Record{
		record(activeTenant.String(), oneCall, 1),
		record("nobody", oneCall, 2),
		record(suspendedTenant.String(), "{", 3),
	}
	log.err = commands.ErrUnavailable
	if err := usage.Process(t.Context(), batch); !errors.Is(err, commands.ErrUnavailable) || len(log.kept) > 0 {
		t.Errorf("the store is away: %v, %d kept", err, len(log.kept))
	}
	log.err, catalogue.err = nil, errors.New("the catalogue is away")
	if err := usage.Process(t.Context(), batch[:1]); err == nil || len(log.kept) > 0 {
		t.Errorf("the catalogue is away: %v, %d kept", err, len(log.kept))
	}
	catalogue.err = nil
	usage.Backlog = func() (int64, int64) { return 11, 10 }
	if err := usage.Process(t.Context(), batch); !errors.Is(err, commands.ErrUnavailable) || len(log.kept) > 0 {
		t.Errorf("too much waits: %v, %d kept", err, len(log.kept))
	}
	usage.Backlog = nil
	if err := usage.Process(t.Context(), batch); err != nil || len(log.kept) != 3 {
		t.Errorf("all is there again: %v, %d kept", err, len(log.kept))
	}
}
