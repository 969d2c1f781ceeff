package eventlog

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// laterVocabulary makes a vocabulary of a later release: the present one with other schemas of
// recorded usage.
func laterVocabulary(t *testing.T) *events.Vocabulary {
	t.Helper()
	document := strings.Replace(events.CurrentVocabulary().Document(), "/api/v1/schemas/meterplex.usage.event.recorded/v1#sha256=",
		"/api/v1/schemas/meterplex.usage.event.recorded/v1#sha256=1ater", 1)
	sum := sha256.Sum256([]byte(document))
	v, err := events.ParseVocabulary(hex.EncodeToString(sum[:]), document)
	if err != nil || v.Hash() == events.CurrentVocabulary().Hash() {
		t.Fatal(err)
	}
	return v
}

// execute runs statements as the superuser.
func execute(t *testing.T, url string, statements ...string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), localtest.SuperuserURL(t, url))
	must.OK(t, err)
	defer pool.Close()
	for _, sql := range statements {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
	}
}

// recordedBy makes all events so far those of a release with another vocabulary.
func recordedBy(t *testing.T, url string, v *events.Vocabulary) {
	t.Helper()
	execute(t, url, `INSERT INTO log_vocabularies VALUES ('`+v.Hash()+`', '`+v.Document()+`')`,
		`UPDATE log_origins SET vocabulary = '`+v.Hash()+`'`)
}

// rendered reads all events of a tenant in a new process, and renders them.
func rendered(t *testing.T, url string, tenant uuid.UUID) (wires []string, err error) {
	t.Helper()
	l, _ := openLogAt(t, url)
	list, err := l.Read(t.Context(), events.PartitionOf(tenant), 0, 99, 99)
	for i := range list {
		if list[i].TenantID != tenant { // of the same partition
			continue
		}
		wire, err := codec.AppendWire(nil, &list[i])
		must.OK(t, err)
		wires = append(wires, string(wire))
	}
	return wires, err
}

// P2: an event has the vocabulary of the release that recorded it, which this release may
// know only from the database. A vocabulary that is missing there, too, is an error.
func TestP2_AnEventKeepsTheVocabularyOfItsWriter(t *testing.T) {
	l, _, url := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "a", 1))
	before, err := rendered(t, url, tenant)
	if err != nil || len(before) != 1 {
		t.Fatal(before, err)
	}
	next := laterVocabulary(t)
	recordedBy(t, url, next)
	after, err := rendered(t, url, tenant)
	want := strings.Replace(before[0], "#sha256=", "#sha256=1ater", 1)
	if err != nil || len(after) != 1 || after[0] != want {
		t.Errorf("rendered with the vocabulary of the reader, %v:\n%s\nwant %s", err, after, want)
	}
	execute(t, url, `ALTER TABLE log_origins DROP CONSTRAINT log_origins_vocabulary_fkey`, `DELETE FROM log_vocabularies WHERE hash = '`+
		next.Hash()+`'`)
	if list, err := rendered(t, url, tenant); err == nil || !strings.Contains(err.Error(), next.Hash()) {
		t.Errorf("rendered without its vocabulary: %v, %v", list, err)
	}
	execute(t, url, `ALTER TABLE log_vocabularies DROP CONSTRAINT log_vocabularies_check`,
		`INSERT INTO log_vocabularies VALUES ('`+next.Hash()+`', '{"subjects":[]}')`)
	if list, err := rendered(t, url, tenant); err == nil {
		t.Errorf("rendered with a document of another hash: %v", list)
	}
	execute(t, url, `DELETE FROM log_origins`)
	if list, err := rendered(t, url, tenant); err == nil || !strings.Contains(err.Error(), "no origin") {
		t.Errorf("rendered without its origin: %v, %v", list, err)
	}
}

// The log's copies are guarded by the database: a hash is that of its document, a row
// is never changed, and an origin names no vocabulary that is not there.
func TestForgedVocabulariesAreRefused(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "a", 1))
	for what, sql := range map[string]string{
		"another document's hash": `INSERT INTO log_vocabularies VALUES (repeat('0', 64), '{}')`,
		"a change of a document":  `UPDATE log_vocabularies SET document = document || ' '`,
		"a deletion":              `DELETE FROM log_vocabularies`,
		"an origin without document": `INSERT INTO log_origins (actor_type, actor_id, service, instance, commit, vocabulary) VALUES ('a',
			'b', 'c', 'd', 'e', repeat('0', 64))`,
		"no residency": `INSERT INTO log_origins (actor_type, actor_id, service, instance, commit, vocabulary, residency)
			VALUES ('a', 'b', 'c', 'd', 'e', '` + events.CurrentVocabulary().Hash() + `', '')`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s was taken", what)
		}
	}
	var copies string
	if err := pool.QueryRow(t.Context(), `SELECT string_agg(document, '') FROM log_vocabularies`).Scan(&copies); err != nil {
		t.Fatal(err)
	}
	if want := events.CurrentVocabulary().Document(); copies != want {
		t.Errorf("the log's copies are\n%s\nwant\n%s", copies, want)
	}
}

// Events keep the residency that they were recorded under; the platform's have the
// deployment's region, and a tenant's without one are refused.
func TestEventsKeepTheirResidency(t *testing.T) {
	url := localtest.Migrated(t, postgres.Migrate)
	l, pool := openLogAt(t, url, func(c *Config) { c.Region = "eu-west-1" })
	tenant := uuid.Must(uuid.NewV7())
	list := []metering.Submitted{usageEvent(tenant, "a", 1), usageEvent(tenant, "b", 1), usageEvent(tenant, "c", 1)}
	list[0].Residency, list[1].Residency, list[2].Residency = "eu", "us", "eu"
	submit(t, l, tenant, list...)
	platform := events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: events.FeatureDefined, DedupeKey: "e/1",
		OccurredAt: list[0].OccurredAt, Payload: []byte(`{"lookupKey":"f","name":"F","type":"METERED","createdAt":"2026-05-01T00:00:00Z"}`)}
	appendOne := func(p events.Pending) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := l.AppendTx(t.Context(), tx, []events.Pending{p})
			return err
		})
	}
	must.OK(t, appendOne(platform))
	for of, want := range map[uuid.UUID]string{tenant: "eu us eu", events.Platform: "eu-west-1"} {
		wires, err := rendered(t, url, of)
		must.OK(t, err)
		var got []string
		for _, w := range wires {
			_, rest, _ := strings.Cut(w, `"dataResidency":"`)
			residency, _, _ := strings.Cut(rest, `"`)
			got = append(got, residency)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", codec.TenantText(of), got, want)
		}
	}
	for _, residency := range []string{"", "EU"} {
		p := list[0].Pending
		p.EventID, p.DedupeKey, p.Residency = uuid.Must(uuid.NewV7()), "u/z", residency
		if err := appendOne(p); err == nil || !strings.Contains(err.Error(), "data residency") {
			t.Errorf("an event of a tenant with the residency %q: %v", residency, err)
		}
	}
	// Both lack a residency; only the platform's event may.
	p := platform
	p.EventID, p.DedupeKey = uuid.Must(uuid.NewV7()), "e/2"
	q := list[0].Pending
	q.EventID, q.DedupeKey, q.Residency, q.Actor = uuid.Must(uuid.NewV7()), "u/y", "", p.Actor
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := l.AppendTx(t.Context(), tx, []events.Pending{p, q})
		return err
	})
	if err == nil {
		t.Error("an event of a tenant has the residency of the platform's event before it")
	}
}

// One key acts by the API and by the console, even in one submission: each event has its own way, and a new process
// reads it.
func TestAnEventNamesTheWayOfItsAction(t *testing.T) {
	l, pool, url := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	byConsole := func(id string) metering.Submitted {
		e := usageEvent(tenant, id, 1)
		e.Actor.Via = events.ViaConsole
		return e
	}
	submit(t, l, tenant, usageEvent(tenant, "a", 1), byConsole("b"), usageEvent(tenant, "c", 1))
	submit(t, l, tenant, byConsole("d"))
	wires, err := rendered(t, url, tenant)
	must.OK(t, err)
	const api, console = `"actor":{"type":"api_key","id":"k"},`, `"actor":{"type":"api_key","id":"k","via":"console"},`
	for i, want := range []string{api, console, api, console} {
		if !strings.Contains(wires[i], want) {
			t.Errorf("event %d is %s\nwant %s", i, wires[i], want)
		}
	}
	if n := count(t, pool, `SELECT count(*) FROM log_origins`); n != 2 {
		t.Errorf("%d origins, want one for each way", n)
	}
	forged := byConsole("e")
	forged.Actor.Via = `console","id":"x`
	if _, err := l.Submit(t.Context(), tenant, []metering.Submitted{forged}); err == nil {
		t.Error("a way that is not a name was recorded")
	}
	if again, err := rendered(t, url, tenant); err != nil || !slices.Equal(again, wires) {
		t.Errorf("%v: the log changed to %v", err, again)
	}
}
