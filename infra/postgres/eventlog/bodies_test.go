package eventlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/must"
)

// payloadsOf makes events of a tenant whose bodies are in short, and some whose are
// not, with their whole payloads; times have all numbers of digits.
func payloadsOf(tenant uuid.UUID) (list []events.Pending, whole []string) {
	add := func(subject events.Subject, key string, at time.Time, body, payload string) {
		p := events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: subject, TenantID: tenant, DedupeKey: key,
			Residency: events.ResidencyUnspecified, OccurredAt: at, Payload: []byte(body)}
		if subject == events.UsageRecorded {
			p.Canonical = 1
		}
		list, whole = append(list, p), append(whole, payload)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		at := time.UnixMicro(random.Int64N(4_000_000_000_000_000) - 1_000_000_000_000_000).UTC()
		if i%2 == 0 {
			at = at.Truncate([]time.Duration{time.Second, time.Hour, 10 * time.Millisecond, time.Millisecond}[i/2%4])
		}
		written := at.Format(time.RFC3339Nano)
		id := []string{fmt.Sprintf("e-%d", i), fmt.Sprintf("é€😀 %d", i), fmt.Sprintf("'%%<%d>", i)}[i%3]
		more := []string{"", `,"metadata":{"a":"}\",[","é":[null,{"x":1.5e-7}]}`, `,"source":"//a/\"b"`,
			`,"metadata":{"k":""},"source":"s"`, `,"note":1`}[i%5]
		payload := fmt.Sprintf(`{"amount":%d,"eventId":"%s","feature":"f"%s,"timestamp":"%s","type":"usage"}`, i, id, more, written)
		body := payload
		if i%5 < 4 {
			body = fmt.Sprintf(`[%d,"f"%s]`, i, []string{"", `,{"a":"}\",[","é":[null,{"x":1.5e-7}]}`, `,null,"//a/\"b"`, `,{"k":""},"s"`}[i%5])
		}
		add(events.UsageRecorded, events.KeyUsage(id), at, body, payload)
		v := events.Validated{RawPosition: int64(i), EventID: id, Feature: "f", Amount: int64(-i), Count: int64(1 + i%7/6),
			Timestamp: at, ValidatedSubscriptionID: tenant, FeatureType: "METERED", PeriodKey: "2026-05"}
		if i%4 == 0 {
			v.Count = int64(-i / 4 % 2)
			v.CorrectedUsage = &events.CorrectedUsage{Kind: []string{events.TypeCorrection, events.TypeRetraction}[i/4%2],
				TargetPosition: 9, TargetEventID: id, Before: int64(i), After: 0}
		}
		v.Admitted, v.Grant = i%5 == 0, int64(i%3-1)
		if i%11 < 3 {
			v.Late = &events.Late{Snapshot: i, Kind: events.AdjustmentLateUsage}
		}
		verdict, _ := json.Marshal(v)
		add(events.UsageValidated, events.KeyValidated(int64(i)), at, string(codec.VerdictBody(&v)), string(verdict))
	}
	add(events.UsageRefused, "e/1", time.Now(), `{"a":[1, 2]}`, `{"a":[1, 2]}`)
	add(events.UsageRecorded, "u/x", time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC), `[1,"f"]`,
		`{"amount":1,"eventId":"x","feature":"f","timestamp":"0001-01-01T00:00:00.000001Z","type":"usage"}`)
	add(events.UsageRecorded, "u/y", time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC), `[1,"f"]`,
		`{"amount":1,"eventId":"y","feature":"f","timestamp":"9999-12-31T23:59:59.999999Z","type":"usage"}`)
	return list, whole
}

// Bodies that the log stores in short form are read whole, byte for byte, by the service
// and in SQL.
func TestPayloadsAreReadAsTheyWereWritten(t *testing.T) {
	l, pool, _ := openLog(t)
	l.cfg.Written = nil // payloads that no schema allows are kept, too
	tenant := uuid.Must(uuid.NewV7())
	list, whole := payloadsOf(tenant)
	tx, err := pool.Begin(t.Context())
	must.OK(t, err)
	if _, err := l.AppendTx(t.Context(), tx, list); err != nil {
		t.Fatal(err)
	}
	must.OK(t, tx.Commit(t.Context()))
	read, err := l.Read(t.Context(), events.PartitionOf(tenant), 0, int64(len(list)), len(list))
	if err != nil || len(read) != len(list) {
		t.Fatal(len(read), err)
	}
	for i := range read {
		if string(read[i].Payload) != whole[i] {
			t.Errorf("%s\nis read as %s", whole[i], read[i].Payload)
		}
	}
	if n := count(t, pool, `SELECT count(*) FROM event_log WHERE json_typeof(body) = 'array'`); n < 300 || n == len(list) {
		t.Errorf("%d of %d bodies are in short", n, len(list))
	}
	if n := count(t, pool, `SELECT count(*) FROM event_log WHERE subject = 1 AND hash IS NOT NULL`); n != 0 {
		t.Errorf("%d hashes are kept that follow from the payload", n)
	}
	for _, table := range []string{"event_log", "event_log_rows"} {
		comparePayloads(t, pool, list, whole, `SELECT l.payload::text, l.payload_hash FROM `+table+` l ORDER BY position`)
	}
	if tx, err = pool.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	must.Exec(t, tx, `SET LOCAL ROLE meterplex_tenant; SET LOCAL TimeZone = 'Asia/Kolkata'; SET LOCAL meterplex.tenant_id = '`+
		tenant.String()+`'`)
	comparePayloads(t, tx, list, whole, `SELECT l.payload::text, l.payload_hash FROM event_log l ORDER BY position`)
}

func comparePayloads(t *testing.T, q postgres.Queryer, list []events.Pending, whole []string, sql string) {
	t.Helper()
	rows, err := q.Query(t.Context(), sql)
	must.OK(t, err)
	i := 0
	var payload string
	var hash []byte
	_, err = pgx.ForEachRow(rows, []any{&payload, &hash}, func() error {
		if payload != whole[i] || !bytes.Equal(hash, codec.PayloadHash(&list[i])) {
			t.Errorf("%s\n%s gives %s, %x", whole[i], sql, payload, hash)
		}
		i++
		return nil
	})
	if err != nil || i != len(list) {
		t.Fatalf("%d of %d rows, %v", i, len(list), err)
	}
}
