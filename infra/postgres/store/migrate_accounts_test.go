package store

import (
	"bytes"

	"database/sql"
	"fmt"
	"maps"

	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"

	"github.com/meterplex/meterplex/migrations"
)

// oldLog is a log of before accounts: migration 0023.
type oldLog struct {
	testing.TB
	url     string
	db      *sql.DB
	tenant  uuid.UUID
	last    int64
	origins map[string]int
}

func newOldLog(t *testing.T) *oldLog {
	t.Helper()
	w := &oldLog{TB: t, url: localtest.Database(t), tenant: uuid.Must(uuid.NewV7()), origins: map[string]int{}}
	var err error
	w.db, err = postgres.OwnerDB(w.url)
	w.must(err)
	t.Cleanup(func() { w.db.Close() })
	provider, err := goose.NewProvider(goose.DialectPostgres, w.db, migrations.FS)
	w.must(err)
	_, err = provider.UpTo(t.Context(), 23)
	w.must(err)
	for _, actor := range []string{"key", events.GroupAggregator, events.GroupEntitlements} {
		var id int
		w.must(w.db.QueryRow(`INSERT INTO log_origins (actor_type, actor_id, service, instance, commit) VALUES ('service', $1, 'meterplex', 'old', 'x') RETURNING id`, actor).Scan(&id))
		w.origins[actor] = id
	}
	return w
}

func (w *oldLog) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// append appends an event with its body as it is stored, and returns its position.
func (w *oldLog) append(p *events.Pending, actor string, body []byte) int64 {
	w.Helper()
	w.last++
	if p.EventID == uuid.Nil {
		p.EventID = uuid.Must(uuid.NewV7())
	}
	if p.DedupeKey == "" {
		p.DedupeKey = events.KeyEvent(p.EventID)
	}
	partition := events.PartitionOf(w.tenant)
	_, err := w.db.Exec(`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin, partition, topic, subject, dedupe_key, body)
 VALUES ($1, 0, now(), $2, $3, $4, 1, $5, $6, $7, $8, $9, $10)`, w.last, p.OccurredAt, p.EventID, w.tenant, w.origins[actor], partition, p.Subject.Topic(), p.Subject, p.DedupeKey, string(body))
	w.must(err)
	_, err = w.db.Exec(`UPDATE log_heads SET position = $1 WHERE partition = $2`, w.last, partition)
	w.must(err)
	return w.last
}

// verdict appends the verdict on usage, in short or as the whole payload with spaces.
func (w *oldLog) verdict(feature, kind, period, eventID string, amount int64, short bool) int64 {
	w.Helper()
	raw := w.last + 1_000_000
	p := &events.Pending{Subject: events.UsageValidated, DedupeKey: events.KeyValidated(raw), OccurredAt: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	p.Payload = codec.VerdictJSON(&events.Validated{RawPosition: raw, EventID: eventID, Feature: feature, Amount: amount, Count: 1, Timestamp: p.OccurredAt,
		ValidatedSubscriptionID: w.tenant, FeatureType: kind, PeriodKey: period})
	body := codec.AppendBody(nil, p)
	if body[0] != '[' {
		w.Fatalf("%s is not in short", body)
	}
	if !short {
		body = bytes.Replace(p.Payload, []byte(`{"`), []byte(`{ "`), 1)
	}
	return w.append(p, "key", body)
}

// letter appends the dead letter of an event by a consumer, and its end.
func (w *oldLog) letter(subject events.Subject, consumer string, source int64, status string) {
	w.Helper()
	f := &events.Pending{Subject: subject, OccurredAt: time.Now()}
	w.append(f, consumer, fmt.Appendf(nil, `{"sourcePosition":%d,"code":"fold_failed"}`, source))
	w.append(&events.Pending{Subject: events.DeadLetterClosed, OccurredAt: time.Now()}, "key", fmt.Appendf(nil, `{"deadLetterId":%q,"status":%q}`, f.EventID, status))
}

// A database with events gets the accounts that its log sums up to: QUOTA verdicts, in short or whole, less those whose dead letters
// were discarded.
func TestP7_AMigratedDatabaseHasTheAccountsOfItsLog(t *testing.T) {
	w := newOldLog(t)
	want := map[string]string{"calls 2026-05": "9007199254740993", "tokens lifetime": "0", `a.b-c_d 2026`: "15"}
	nasty := []string{`a","QUOTA","2026-06"]`, `\`, `"`, `[1,2]`, `{"a":1}`, `,`, `x"y`, `'; --`}
	w.verdict("calls", "QUOTA", "2026-05", "large", domain.MaxAmount, true)
	w.verdict("calls", "QUOTA", "2026-05", "plain", 2, false)
	for i, id := range nasty { // 8 of 5 and 8 of 3
		w.verdict("calls", "QUOTA", "2026-06", id+strconv.Itoa(i), 5, true)
		w.verdict("calls", "QUOTA", "2026-06", id+strconv.Itoa(i), 3, false)
	}
	w.verdict("calls", "QUOTA", "2026-06", "six", 6, true)
	w.verdict("a.b-c_d", "QUOTA", "2026", "year", 15, true)
	for _, short := range []bool{true, false} {
		w.verdict("bytes", "METERED", "2026-05", "QUOTA", 1000, short)
		w.letter(events.AggregationFailed, events.GroupAggregator, w.verdict("calls", "QUOTA", "2026-06", "discarded", 100, short), "DISCARDED")
		w.letter(events.PublishFailed, "key", w.verdict("tokens", "QUOTA", "lifetime", "withheld", 100, short), "DISCARDED")
		w.letter(events.AggregationFailed, events.GroupAggregator, w.verdict("bytes", "METERED", "2026-06", "metered", 100, short), "DISCARDED")
	}
	// These count: resolved, of another consumer, and of usage that has no verdict.
	w.letter(events.AggregationFailed, events.GroupAggregator, w.verdict("calls", "QUOTA", "2026-06", "resolved", 1, true), "RESOLVED")
	w.letter(events.AggregationFailed, events.GroupEntitlements, w.verdict("calls", "QUOTA", "2026-06", "other", 1, true), "DISCARDED")
	w.letter(events.PublishFailed, "key", w.append(&events.Pending{Subject: events.UsageRecorded, DedupeKey: "u/raw", OccurredAt: time.Now()}, "key", []byte(`[900,"calls"]`)), "DISCARDED")
	want["calls 2026-06"] = strconv.Itoa(8*5 + 8*3 + 6 + 1 + 1)
	if _, err := postgres.Migrate(t.Context(), w.url); err != nil {
		t.Fatal(err)
	}
	s, _, pool := openStoreAt(t, w.url)
	rows, err := pool.Query(t.Context(), `SELECT feature, period_key, used::text FROM quota_accounts WHERE tenant_id = $1 AND held = 0`, w.tenant)
	w.must(err)
	got := map[string]string{}
	for rows.Next() {
		var feature, period, used string
		w.must(rows.Scan(&feature, &period, &used))
		got[feature+" "+period] = used
	}
	w.must(rows.Err())
	if !maps.Equal(got, want) {
		t.Errorf("the accounts are %v instead of %v", got, want)
	}
	folded, _, err := s.FoldedAccounts(t.Context(), w.tenant)
	w.must(err)
	for key, a := range folded {
		if got[key.Feature+" "+key.PeriodKey] != a.Used.String() || a.Held.Sign() != 0 {
			t.Errorf("the fold of %s in %s is %s", key.Feature, key.PeriodKey, a.Used.String())
		}
	}
	if len(folded) != len(want) {
		t.Errorf("the fold has %d accounts", len(folded))
	}
}
