package http_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/offboarding"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	folder "github.com/meterplex/meterplex/infra/erasures"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/offboardings"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/verify"
)

func (w *testService) erasures() *offboarding.Erasures {
	return &offboarding.Erasures{Store: &offboardings.Erasures{Store: w.store, Models: models.PersonalData(), Rows: 3}, Now: time.Now,
		NewID:  newID,
		Logger: slog.New(slog.DiscardHandler)}
}

// The personal data of the tests: each text has the first, the number is a metadata value.
const (
	secretText   = "zebra"
	secretNumber = "49170999001"
)

// erasureWorld is a service with an archived tenant that has personal data wherever the service keeps any.
type erasureWorld struct {
	*offboardingWorld
	lists []string // paths whose answers do not change
	sums  []string // of contents of messages, as a key would have them
}

// newErasureWorld returns a world. If it is behind, the series and the dead letters have yet to fold its last events.
func newErasureWorld(t *testing.T, behind bool) *erasureWorld {
	w := &erasureWorld{offboardingWorld: &offboardingWorld{testService: newTestService(t)}}
	w.kind = w.testService.offboarding().OffboardingKind()
	w.catalogue()
	w.a = &account{}
	header := map[string]string{"Idempotency-Key": "create-1"}
	w.a.id = w.want(201, call{"POST", "/api/v1/tenants", bootstrap, header,
		`{"name":"Zebra Ltd","class":"small","externalIds":["crm-zebra"],"metadata":{"contact":"ann@zebra.example"}}`})["id"].(string)
	w.a.subscription = w.want(201, call{"POST", "/api/v1/tenants/" + w.a.id + "/subscriptions", bootstrap, nil, `{"plan":"basic"}`})["id"].(string)
	w.a.key, w.a.keyID = w.key(w.a.id, nil, commands.TenantScopes()...)
	w.want(200, call{"PATCH", "/api/v1/tenants/" + w.a.id, bootstrap, map[string]string{"Idempotency-Key": "rename"},
		`{"name":"Zebra Holding"}`})
	// no event
	w.want(200, call{"PATCH", "/api/v1/tenants/" + w.a.id, bootstrap, map[string]string{"Idempotency-Key": "again"},
		`{"name":"Zebra Holding"}`})
	of := func(id string, metadata map[string]any) map[string]any {
		return event(id, map[string]any{"metadata": metadata})
	}
	w.accept(w.a,
		of("text", map[string]any{"region": "zebra-eu", "user": "zebra"}),
		of("same", map[string]any{"region": "zebra-eu", "model": "zebra-1", "deep": map[string]any{"a": []any{"zebra"}}}),
		of("number", map[string]any{"region": json.Number(secretNumber)}),
		of("numberText", map[string]any{"region": secretNumber}),
		of("null", map[string]any{"region": nil, "user": "zebra"}),
		of("object", map[string]any{"region": map[string]any{"x": "zebra"}}),
		of("other", map[string]any{"region": "other", "user": "zebra"}),
		of("true", map[string]any{"region": true}),
		event("source", map[string]any{"source": "/x", "metadata": map[string]any{"user": "zebra"}}),
		event("plain", nil),
		event("storage", map[string]any{"feature": "storage", "metadata": map[string]any{"region": "zebra-eu"}}))
	w.refuse(w.a, of("text", map[string]any{"region": "zebra-eu", "user": "zebra-2"}), of("text", map[string]any{"user": "zebra-3"}),
		event("plain", map[string]any{"amount": 2}),
		event("unknown", map[string]any{"feature": "nothing", "metadata": map[string]any{"region": "zebra"}}),
		event("bad", map[string]any{"amount": -1, "metadata": map[string]any{"region": "zebra"}}))
	w.fold()
	w.accept(w.a,
		map[string]any{"eventId": "c1", "type": "correction", "correctionRef": "text", "feature": "api_calls", "amount": 5,
			"timestamp": now(), "metadata": map[string]any{"by": "zebra"}},
		map[string]any{"eventId": "c2", "type": "retraction", "correctionRef": "number", "feature": "api_calls", "timestamp": now(),
			"metadata": map[string]any{"by": "zebra"}})
	w.want(200, call{"POST", "/api/v1/entitlements/api_calls/consume", w.a.key, nil,
		`{"eventId":"used","amount":2,"metadata":{"region":"zebra-us","user":"zebra"}}`})
	w.refuse(w.a, event("used", map[string]any{"metadata": map[string]any{"user": "zebra"}}))
	w.message(`{"eventId":"sent","feature":"api_calls","amount":-1,"timestamp":"` + now() + `","metadata":{"user":"zebra"}}`)
	w.message(`{"eventId":"sent","feature":"api_calls","amount":1,"timestamp":"` + now() + `","metadata":{"user":9007199254740993}}`)
	w.message(`{"eventId":"hostile","feature":"api_calls","amount":-1,"timestamp":"` + now() +
		`","metadata":{"zebra\u0000":1e200000,"user":"\ud83d zebra"}}`)
	if behind {
		w.feedValidator()
		w.feed(usage.Consumer(newID, models.DefaultFolds().Usage))
		w.follow()
	} else {
		w.recordSeen()
		w.fold()
	}
	w.lists = []string{"/api/v1/usage?tenantId=" + w.a.id + "&feature=api_calls&granularity=hour&from=" + day(0) + "&to=" + day(1),
		periodsOf(w.a), "/api/v1/tenants/" + w.a.id + "/offboard"}
	w.want(202, call{"POST", "/api/v1/tenants/" + w.a.id + "/offboard", bootstrap, nil, `{"reason":"the contract ended"}`})
	w.provider = &countingProvider{w: w.testService}
	w.until("archive", false)
	w.failures()
	w.until("", false)
	return w
}

// archivedTexts returns the events with personal data, or a hash of it, that were recorded after the archive.
func (w *erasureWorld) archivedTexts() (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), `SELECT count(*) FROM event_log_rows l WHERE l.tenant_id = $1
 AND (l.body::text ~ 'zebra|emVicm' OR l.dedupe_key ~ $2)
 AND l.position >
  (SELECT a.position FROM event_log_rows a WHERE a.tenant_id = $1 AND a.dedupe_key ~ '^o/.*/archived$')`, w.a.id,
		strings.Join(w.sums, "|")).Scan(&n))
	return n
}

func day(n int) string {
	return time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, n).Format(time.RFC3339)
}

// refuse sends usage that is refused.
func (w *erasureWorld) refuse(a *account, list ...any) {
	w.Helper()
	w.do(call{"POST", "/api/v1/usage/events", a.key, nil, batch(list...)})
}

// message sends a message of usage.commands, which is refused.
func (w *erasureWorld) message(value string) {
	w.Helper()
	sum := sha256.Sum256([]byte(value))
	w.sums = append(w.sums, hex.EncodeToString(sum[:8]))
	c := &metering.UsageCommands{Tenants: &store.Catalogue{Pool: w.pool},
		Ingest: &metering.IngestUsage{Log: w.log, Histories: w.store.Histories, Now: time.Now,
			Window: domain.TimestampWindow{Ahead: time.Minute, Behind: time.Hour}, NewID: func(time.Time) uuid.UUID { return newID() }}}
	w.must(c.Process(w.Context(), []events.Record{{Topic: events.TopicUsageCommands, Offset: int64(len(value)), Key: []byte(w.a.id),
		Value:   []byte(value),
		Headers: []events.Header{{Key: metering.HeaderMessageID, Value: []byte("always the same")}}}}))
}

// refusals counts the messages that were refused.
func (w *erasureWorld) refusals() int {
	return w.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 7`)
}

// count counts rows of the tenant.
func (w *erasureWorld) count(sql string) (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), sql, w.a.id).Scan(&n))
	return n
}

// failures records failures that name the tenant's events.
func (w *erasureWorld) failures() {
	w.Helper()
	tenant := uuid.MustParse(w.a.id)
	usage := json.RawMessage(
		`{"amount":1,"eventId":"text","feature":"api_calls","metadata":{"region":"zebra-eu"},"timestamp":"2026-05-01T00:00:00Z","type":"usage"}`)
	for subject, payload := range map[events.Subject]any{
		events.PublishFailed: events.Failed{SourcePosition: 1, SourceEventID: newID(),
			SourceSubject: "meterplex.catalogue.tenant.created.v1", Topic: "meterplex.catalogue",
			Stage: events.StagePublishing, Code: "publish_refused", Reason: "r",
			Payload: json.RawMessage(`{"id":"` + w.a.id + `","name":"Zebra Ltd","externalIds":["crm-zebra"]}`)},
		events.AggregationFailed: events.Failed{SourcePosition: 1, SourceEventID: newID(),
			SourceSubject: "meterplex.usage.event.recorded.v1", Topic: "usage.raw",
			Stage: events.StageAggregation, Code: "fold_failed", Reason: "r", Payload: usage},
	} {
		body, err := codec.EncodePayload(subject, payload)
		w.must(err)
		id := newID()
		w.must(w.store.Change(w.Context(), tenant, func(tx commands.Tx) error {
			_, err := tx.Append(events.Pending{EventID: id, Subject: subject, TenantID: tenant, DedupeKey: events.KeyEvent(id),
				OccurredAt: time.Now(), Payload: body, Residency: "unspecified",
				Actor: events.Actor{Type: "service", ID: events.GroupSeries}})
			return err
		}))
	}
}

// everything returns each row of each table as text.
func (w *erasureWorld) everything() []string {
	w.Helper()
	owner, err := pgx.Connect(context.Background(), w.pool.Config().ConnString())
	w.must(err)
	defer owner.Close(context.Background())
	rows, err := owner.Query(context.Background(),
		`SELECT c.relname, has_table_privilege('meterplex_worker', c.oid, 'SELECT') FROM pg_class c
 WHERE c.relkind IN ('r', 'p', 'v') AND c.relnamespace = 'public'::regnamespace ORDER BY 1`)
	w.must(err)
	var all []string
	var name string
	var readable bool
	tables := map[string]bool{}
	_, err = pgx.ForEachRow(rows, []any{&name, &readable}, func() error { tables[name] = readable; return nil })
	w.must(err)
	for name, readable := range tables {
		_, err := owner.Exec(context.Background(), map[bool]string{true: "SET ROLE meterplex_worker", false: "RESET ROLE"}[readable])
		w.must(err)
		rows, err := owner.Query(context.Background(), `SELECT '`+name+` ' || t::text FROM `+name+` t`)
		w.must(err)
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		w.must(err)
		all = append(all, list...)
	}
	return all
}

// shown returns the rows with personal data, as text, in base64 or in hex.
func (w *erasureWorld) shown(hashes ...string) (found []string) {
	w.Helper()
	forms := append([]string{secretText, secretNumber, "9007199254740993", base64.StdEncoding.EncodeToString([]byte(secretText))[:6],
		hex.EncodeToString([]byte(secretText))}, hashes...)
	for _, row := range w.everything() {
		for _, form := range forms {
			if strings.Contains(row, form) || strings.Contains(strings.ToLower(row), form) {
				found = append(found, fmt.Sprintf("%q in %.300s", form, row))
				break
			}
		}
	}
	return found
}

// hashes returns the hashes of contents with personal data.
func (w *erasureWorld) hashes() []string {
	w.Helper()
	rows, err := w.pool.Query(w.Context(),
		`SELECT h FROM (SELECT encode(substring(l.payload_hash FROM 2), 'hex') FROM event_log_rows l WHERE l.tenant_id = $1
			AND l.payload_hash IS NOT NULL AND l.payload::text ~* 'zebra|49170999001'
 UNION SELECT l.payload ->> 'conflictHash' FROM event_log_rows l WHERE l.tenant_id = $1 AND l.subject = 4 AND l.payload::text ~ 'zebra'
 UNION SELECT unnest($2::text[])
 UNION SELECT encode(request_hash, 'hex') FROM idempotency_answers WHERE body::text ~* 'zebra') AS x (h) WHERE h !~ '^0*$'`, w.a.id, w.sums)
	w.must(err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	w.must(err)
	return list
}

// hours returns the sums of the hours of the series over their groups.
func (w *erasureWorld) hours() []string {
	w.Helper()
	rows, err := w.pool.Query(w.Context(), `SELECT concat_ws(' ', generation, feature, hour, sum(amount), sum(event_count))
 FROM usage_series WHERE tenant_id = $1 GROUP BY generation, feature, hour`, w.a.id)
	w.must(err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	w.must(err)
	slices.Sort(list)
	return list
}

var progress = regexp.MustCompile(`"(asOfPosition|completeUpTo)":"[^"]*"`)

func (w *erasureWorld) figures() (texts []string) {
	w.Helper()
	for _, path := range w.lists {
		texts = append(texts, progress.ReplaceAllString(string(w.do(call{method: "GET", path: path, key: bootstrap}).body), ""))
	}
	for _, sql := range []string{
		`SELECT coalesce(string_agg(u::text, E'\n' ORDER BY u::text), '') FROM usage_aggregates u`,
		`SELECT coalesce(string_agg(u::text, E'\n' ORDER BY u::text), '') FROM period_lines u`,
		`SELECT coalesce(string_agg(u::text, E'\n' ORDER BY u::text), '') FROM period_snapshots u`,
		`SELECT coalesce(string_agg(u::text, E'\n' ORDER BY u::text), '') FROM quota_accounts u`,
		`SELECT string_agg(concat_ws(' ', partition, position, previous_position, recorded_at, occurred_at, event_id, tenant_id,
			correlation_id, causation_id, epoch, origin, topic, subject), E'\n' ORDER BY partition, position)
 FROM event_log WHERE (partition, position) NOT IN (SELECT l.partition, l.position FROM event_log l WHERE l.subject = 31
 AND l.payload ->> 'erasedAt' IS NOT NULL) AND subject < 70`,
		`SELECT coalesce(string_agg(concat_ws(' ', d.id, d.stage, d.status, d.code, d.feature, d.producer_event_id, d.source_position),
			E'\n' ORDER BY d.id), '') FROM dead_letter_events d`} {
		var text string
		w.must(w.pool.QueryRow(w.Context(), sql).Scan(&text))
		texts = append(texts, text)
	}
	return append(texts, w.hours()...)
}

// verified runs the checks of meterplex verify on the tenant's partition.
func (w *erasureWorld) verified() {
	w.Helper()
	p := events.PartitionOf(uuid.MustParse(w.a.id))
	checks, err := verify.Run(w.Context(), verify.Config{DatabaseURL: w.pool.Config().ConnString(), NoTopics: "not read",
		Partitions: []int16{p}, Now: time.Now, Progress: func(string) {}})
	w.must(err)
	for _, c := range checks {
		if c.Needs == "database" && c.Looked && (c.Holds == nil || !*c.Holds) {
			w.Errorf("%s: %s %+v", c.Name, c.Figures, c)
		}
	}
}

// rebuildsAgree compares each read model with the log.
func (w *erasureWorld) rebuildsAgree() {
	w.Helper()
	defer w.rebuilding()()
	for _, name := range []string{"usage_aggregates", "usage_series", "dead_letter_events", "usage_refusals", "entitlement_reads"} {
		got := w.want(200, call{"POST", "/api/v1/projections/" + name + "/verify", bootstrap, map[string]string{"Prefer": "wait=30"}, nil})
		w.same(name, valuesOf(got, "differs", "state"), "0 ABANDONED")
	}
}

// The personal data of an archived tenant is in no table after its erasure, and each figure is as before. Each step may be lost and run
// twice.
func TestP6_ErasureOfPersonalData(t *testing.T) {
	for _, lose := range []bool{true, false}[:tier.Draws(t, 1, 2)] {
		t.Run(fmt.Sprintf("lost results %v", lose), func(t *testing.T) { testErasure(newErasureWorld(t, false), lose) })
	}
}

func testErasure(w *erasureWorld, lose bool) {
	w.failures()
	late, refused := `{"eventId":"late","feature":"api_calls","amount":1,"timestamp":"`+now()+`","metadata":{"user":"zebra"}}`, w.refusals()
	w.message(late)
	w.message(late + " ")
	w.same("refused messages of one id", w.refusals(), refused+2)
	w.fold()
	if n := w.archivedTexts(); n > 0 {
		w.Errorf("%d events were recorded with personal data after the archive", n)
	}
	before, hashes := w.figures(), w.hashes()
	if found := w.shown(hashes...); len(found) < 30 {
		w.Fatalf("only %d rows have personal data:\n%s", len(found), strings.Join(found, "\n"))
	}
	w.verified()
	path := "/api/v1/tenants/" + w.a.id + "/erase"
	w.refused(w.do(call{method: "GET", path: path, key: bootstrap}), 404, "erasure_not_found")
	made := w.want(202, call{"POST", path, bootstrap, map[string]string{"Idempotency-Key": "erase"}, `{"reason":"Article 17"}`})
	w.same("a repetition", w.want(202, call{"POST", path, bootstrap, map[string]string{"Idempotency-Key": "erase"},
		`{"reason":"Article 17"}`})["id"], made["id"])
	w.same("a second request", w.want(202, call{"POST", path, bootstrap, nil, `{"reason":"again"}`})["id"], made["id"])
	w.eraseAll(lose)
	w.same("a repetition", w.want(202, call{"POST", path, bootstrap, map[string]string{"Idempotency-Key": "erase"},
		`{"reason":"Article 17"}`})["id"], made["id"])
	got := w.want(200, call{method: "GET", path: path, key: bootstrap})
	w.same("state", got["state"], "ERASED")
	tenant := w.get("/tenants/" + w.a.id)
	if tenant["name"] != "erased" || tenant["erasedAt"] == nil || tenant["externalIds"] != nil || tenant["metadata"] != nil {
		w.Errorf("%v", tenant)
	}
	if found := w.shown(hashes...); len(found) > 0 {
		w.Errorf("%d rows:\n%s", len(found), strings.Join(found, "\n"))
	}
	w.message(late)
	w.same("refused messages after a repetition", w.refusals(), refused+2)
	w.same("counts of no dead letter", w.count(`SELECT count(*) FROM dead_letter_counts WHERE tenant_id = $1 AND failed = 0 AND retrying = 0
		AND resolved = 0 AND discarded = 0`), 0)
	for i, after := range w.figures() {
		if after != before[i] {
			w.Errorf("before:\n%s\nafter:\n%s", before[i], after)
		}
	}
	w.message(`{"eventId":"later","feature":"api_calls","amount":1,"timestamp":"` + now() + `","metadata":{"user":"zebra"}}`)
	w.failures()
	w.fold()
	w.verified()
	w.rebuildsAgree()
	if found := w.shown(hashes...); len(found) > 0 {
		w.Errorf("after a rebuild: %d rows:\n%s", len(found), strings.Join(found, "\n"))
	}
	w.refused(w.do(call{"POST", "/api/v1/tenants", bootstrap, map[string]string{"Idempotency-Key": "create-1"},
		`{"name":"Zebra Ltd","class":"small","externalIds":["crm-zebra"],"metadata":{"contact":"ann@zebra.example"}}`}), 422,
		"idempotency_key_reused")
}

// eraseAll runs the steps of the erasure. With lose each result is lost: two instances repeat the committed step.
func (w *erasureWorld) eraseAll(lose bool) {
	w.Helper()
	kind := w.erasures().ErasureKind()
	run := kind.Run
	kind.Run = func(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
		result, err := run(ctx, s)
		if err == nil && lose {
			result, err = run(ctx, s)
		}
		return result, err
	}
	for range 1000 {
		w.exec(`UPDATE sagas SET next_at = now() WHERE kind = 'erasure' AND ended_at IS NULL`)
		s := w.runStep([]commands.SagaKind{kind}, w.must)
		if s == nil {
			return
		}
		if slices.Contains(s.Missing, "relay") {
			w.exec(`UPDATE relay_cursors c SET position = h.position, furthest = h.position FROM log_heads h
				WHERE h.partition = c.partition`)
		} else if s.Missing != nil { // the consumers are behind
			w.fold()
			w.recordSeen()
		}
	}
	w.Fatal("the erasure does not end")
}

// An erasure is saved outside the database before anything is erased, and begins again if a restored database does not know it.
func TestP6_ARestoredBackupIsErasedAgain(t *testing.T) {
	w := &erasureWorld{offboardingWorld: &offboardingWorld{testService: newTestService(t), a: &account{}}}
	w.a.id = w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"Zebra Ltd","class":"small"}`})["id"].(string)
	tenant := uuid.MustParse(w.a.id)
	set := func(status string) {
		w.exec(`UPDATE tenants SET status = $2, name = 'Zebra Ltd', erased_at = NULL WHERE id = $1`, w.a.id, status)
	}
	name := func() any { return w.get("/tenants/" + w.a.id)["name"] }
	w.refused(w.do(call{"POST", "/api/v1/tenants/" + w.a.id + "/erase", bootstrap, nil, `{"reason":"r"}`}), 409, "tenant_not_archived")
	set("ARCHIVED")
	c := w.erasures()
	c.Files = folder.Folder(t.TempDir() + "/missing")
	_, err := c.Start(w.Context(), commands.Request{By: commands.Caller{Actor: events.Actor{Type: "system", ID: "test"}}}, tenant, "r")
	w.must(err)
	failed := 0
	w.runStep([]commands.SagaKind{c.ErasureKind()}, func(error) { failed++ })
	w.same("failures, and the name, without the directory", fmt.Sprint(failed, " ", name()), "1 Zebra Ltd")
	c.Files = folder.Folder(t.TempDir())
	w.exec(`UPDATE sagas SET next_at = now(), lease = NULL`)
	w.runStep([]commands.SagaKind{c.ErasureKind()}, w.must)
	files, err := c.Files.List()
	w.must(err)
	if len(files) != 1 || files[0].TenantID != tenant || files[0].Reason != "r" || name() != "erased" {
		w.Fatalf("%v, the name is %v", files, name())
	}
	// An older backup is restored.
	owner, err := pgx.Connect(w.Context(), w.pool.Config().ConnString())
	w.must(err)
	defer owner.Close(context.Background())
	_, err = owner.Exec(w.Context(), `TRUNCATE erasures, sagas`)
	w.must(err)
	set("ACTIVE")
	var logged bytes.Buffer
	c.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	repeat := &offboarding.RepeatErasures{Erasures: c, Tenants: &store.Catalogue{Pool: w.pool},
		Reader: offboardings.Reader{Catalogue: &store.Catalogue{Pool: w.pool}}}
	for range 2 {
		w.must(repeat.Look(w.Context()))
	}
	if n := strings.Count(logged.String(), "level=ERROR"); n != 1 || !strings.Contains(logged.String(), w.a.id) {
		w.Errorf("%d errors in %s", n, logged.String())
	}
	set("ARCHIVED")
	for range 2 {
		w.must(repeat.Look(w.Context()))
	}
	w.same("erasures", len(w.get("/erasures")["data"].([]any)), 1)
	c.Files = folder.Folder(t.TempDir()) // METERPLEX_ERASURES is set later
	w.must(repeat.Look(w.Context()))
	files, err = c.Files.List()
	w.must(err)
	if len(files) != 1 || files[0].TenantID != tenant {
		t.Errorf("the files of an earlier erasure are %v", files)
	}
	w.runStep([]commands.SagaKind{c.ErasureKind()}, w.must)
	w.same("the name after the repetition", name(), "erased")
}
