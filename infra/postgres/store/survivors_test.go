package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/internal/must"
)

// awkwardValues are JSON values that often break parsers, and some valid ones.
func awkwardValues(kind string) []string {
	texts := []string{`"\u0000"`, `"a\u0000b"`, `"\ud800"`, `"\udc00x"`, `"\ud83d\ude00"`, `"\u2028\u202e\ufeff"`, `"\\u0000"`, `"é"`, `""`,
		`" "`, `"'; DROP TABLE event_log; --"`, `"../"`, `"a\r\nb"`,
		`"` + strings.Repeat("x", 300) + `"`, "\"\xff\"", `"NaN"`, `"{}"`, `"\u007f"`}
	numbers := []string{`0`, `-0`, `1`, `1.0`, `1e3`, `1E400`, `5e-324`, `1e-7`, `0.1`, `1.7976931348623157e308`, `9007199254740991`,
		`9007199254740993`, `-9223372036854775809`, `123456789012345678901234567890`, `1e21`, `-1.50`}
	switch kind {
	case "timestamp":
		return []string{`"2026-05-01T12:00:00Z"`, `"2026-05-01T12:00:00.000001Z"`, `"2026-05-01T12:00:00.999999999+23:59"`,
			`"2026-05-01T12:00:00.1234567-00:00"`, `"1969-12-31T23:59:59.999999Z"`, `"0001-01-01T00:00:00Z"`,
			`"0000-01-01T00:00:00+14:00"`, `"9999-12-31T23:59:59.999999-14:00"`, `"9999-12-31T23:59:59.999999Z"`, `"1582-10-10T00:00:00Z"`,
			`"2026-05-01t12:00:00z"`, `"2026-05-01T23:59:60Z"`, `1777636800`, `null`}
	case "amount":
		return append(numbers, `"5"`, `null`, `true`)
	case "value":
		return append(append(texts, numbers...), `null`, `true`, `[]`, `{}`, `[[1],{"a":[{}]}]`, `{"":0}`, `{"\u0000":1}`)
	}
	return append(texts, `"e1"`, `"api_calls"`, `"api_calls"`, `null`, `7`)
}

// message draws a usage event of the values above: most of it fine.
func drawMessage(rt *rapid.T, n int) string {
	pick := func(kind, fine string) string {
		if rapid.IntRange(0, 5).Draw(rt, "fate of "+kind) > 0 {
			return fine
		}
		return rapid.SampledFrom(awkwardValues(kind)).Draw(rt, kind)
	}
	members := []string{`"eventId":` + pick("eventId", fmt.Sprintf(`"s%d"`, n)), `"feature":` + pick("feature", `"api_calls"`),
		`"amount":` + pick("amount", `5`),
		`"timestamp":` + rapid.SampledFrom(awkwardValues("timestamp")).Draw(rt, "timestamp")}
	var metadata []string
	for i := range rapid.IntRange(0, 3).Draw(rt, "metadata") {
		metadata = append(metadata, fmt.Sprintf(`"m%d":%s`, i, rapid.SampledFrom(awkwardValues("value")).Draw(rt, "value")))
	}
	if metadata != nil {
		members = append(members, `"metadata":{`+strings.Join(metadata, ",")+`}`)
	}
	if rapid.IntRange(0, 9).Draw(rt, "fate of the rest") == 0 {
		members = append(members, rapid.SampledFrom(awkwardValues("name")).Draw(rt, "another name")+`:1`)
	}
	return `{` + strings.Join(members, ",") + `}`
}

// newAcceptingCommands is the way in for messages, for a tenant with one feature.
func newAcceptingCommands(t *testing.T, s *Store, l *eventlog.Log, pool *pgxpool.Pool) (*metering.UsageCommands, uuid.UUID) {
	t.Helper()
	tenant := uuid.Must(uuid.NewV7())
	now := time.Date(2026, 5, 4, 0, 0, 0, 0, time.UTC)
	sub, err := json.Marshal(domain.Subscription{ID: uuid.Must(uuid.NewV7()), TenantID: tenant, Plan: "p",
		Status: domain.SubscriptionActive,
		Entitlements: []domain.Grant{{Entitlement: domain.Entitlement{Feature: "api_calls", ResetPeriod: domain.ResetMonthly},
			Type: domain.FeatureMetered}}})
	must.OK(t, err)
	for sql, args := range map[string][]any{
		`INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'Acme', 'small', 'ACTIVE', now())`: {tenant},
		`INSERT INTO subscription_history VALUES ($1, 0, '0001-01-01', $2)`:                                       {tenant, sub},
	} {
		must.Exec(t, pool, sql, args...)
	}
	const ages = 290 * 365 * 24 * time.Hour
	return &metering.UsageCommands{Tenants: &Catalogue{Pool: pool},
			Ingest: &metering.IngestUsage{Log: l, Histories: s.Histories, Now: func() time.Time {
				return now
			}, Window: domain.TimestampWindow{Ahead: ages, Behind: ages}, NewID: func(time.Time) uuid.UUID {
				return uuid.Must(uuid.NewV7())
			}}},
		tenant
}

// The database accepts the result of any message: an error would redeliver the message
// forever, and block all later ones. An accepted event is stored byte for byte, with its
// time to the microsecond, and SQL can query all its members.
func TestP2_TheDatabaseStoresEveryDecision(t *testing.T) {
	s, l, pool, _ := openStore(t)
	c, tenant := newAcceptingCommands(t, s, l, pool)
	sent := 0
	rapid.Check(t, func(rt *rapid.T) {
		var records []events.Record
		for range rapid.IntRange(1, 20).Draw(rt, "messages") {
			sent++
			records = append(records, events.Record{Topic: events.TopicUsageCommands, Partition: 3, Offset: int64(sent),
				Key: []byte(tenant.String()), Value: []byte(drawMessage(rt, sent))})
		}
		if err := c.Process(t.Context(), records); err != nil {
			rt.Fatalf("%v: %s", err, values(records))
		}
	})
	rows, err := pool.Query(t.Context(), `SELECT l.payload::text, occurred_at, encode(l.payload_hash, 'hex') FROM event_log l
		WHERE tenant_id = $1 AND subject = 1`, tenant)
	must.OK(t, err)
	var payload, hash string
	var at time.Time
	stored := 0
	if _, err := pgx.ForEachRow(rows, []any{&payload, &at, &hash}, func() error {
		stored++
		event, err := intake.DecodePayload([]byte(payload))
		sum := sha256.Sum256([]byte(payload))
		if err != nil || !bytes.Equal(event.Payload(), []byte(payload)) || !event.Timestamp.Equal(at) ||
			!strings.HasSuffix(hash, fmt.Sprintf("%x", sum)) {
			t.Errorf("%s at %s with hash %s is read as %+v, %v", payload, at, hash, event, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	// This query parses every payload of the log.
	if n := count(t, pool, `SELECT count(*) FROM event_log l WHERE l.payload ->> 'no such member' IS NOT NULL
		OR (l.payload::jsonb)::text = ''`); n != 0 {
		t.Errorf("%d", n)
	}
	refused := count(t, pool, `SELECT count(*) FROM event_log WHERE tenant_id = $1 AND subject = $2`, tenant, events.UsageRefused)
	if stored == 0 || refused == 0 {
		t.Errorf("of %d messages %d are stored and %d refused: nothing was shown", sent, stored, refused)
	}
	t.Logf("of %d messages %d are stored and %d refused", sent, stored, refused)
}

func values(records []events.Record) string {
	var all []byte
	for i := range records {
		all = append(append(all, records[i].Value...), '\n')
	}
	return string(all)
}
