package http_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/infra/local/localtest"
)

// A tenant has the residency of its creation, or the deployment's region by default; a
// change is an event. Each event keeps the residency under which it was recorded.
func TestTenantsHaveADataResidency(t *testing.T) {
	w := newTestService(t, func(s *http.Server) { s.Catalogue.Region = "eu-west-1" })
	w.catalogue()
	a := w.newAccount("A")
	tenant := "/api/v1/tenants/" + a.id
	if got := w.want(200, call{method: "GET", path: tenant, key: bootstrap})["dataResidency"]; got != "eu-west-1" {
		t.Errorf("a tenant that names none has %v", got)
	}
	named := w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"N","class":"small","dataResidency":"us-east-1"}`})
	if named["dataResidency"] != "us-east-1" {
		t.Errorf("created with %v", named)
	}
	w.ingest(a, batch(event("before", nil)))
	for range 2 { // the second changes no field
		if got := w.want(200, call{"PATCH", tenant, bootstrap, nil, `{"dataResidency":"ap-south-1"}`}); got["dataResidency"] != "ap-south-1" || got["name"] != "A" {
			t.Errorf("changed to %v", got)
		}
	}
	if got := w.want(200, call{"PATCH", tenant, bootstrap, nil, `{"name":"B","dataResidency":null}`}); got["dataResidency"] != "ap-south-1" || got["name"] != "B" {
		t.Errorf("another change gave %v", got)
	}
	w.ingest(a, batch(event("after", nil)))
	w.fold()
	residency := func(line string) string {
		_, rest, _ := strings.Cut(line, `"metadata":{"retentionClass":"`)
		_, rest, _ = strings.Cut(rest, `"dataResidency":"`)
		text, _, _ := strings.Cut(rest, `"`)
		return text
	}
	for _, key := range []string{a.key, bootstrap} {
		changed := 0
		for _, line := range w.pages(key, "/api/v1/events?limit=1000&tenantId="+a.id) {
			want := "eu-west-1"
			if strings.Contains(line, `"after"`) || strings.Contains(line, "tenant.changed") {
				want = "ap-south-1"
			}
			if residency(line) != want {
				t.Errorf("want %s: %s", want, line)
			}
			if strings.Contains(line, "tenant.changed") {
				changed++
			}
		}
		if changed != 2 {
			t.Errorf("%d events tell of two changes", changed)
		}
	}
	created := linesWith(w.pages(bootstrap, "/api/v1/events?limit=1000"), `"eventType":"meterplex.catalogue.tenant.created"`)
	if len(created) != 2 || len(linesWith(created, `"dataResidency":"us-east-1","createdAt"`)) != 1 || len(linesWith(created, `"dataResidency":"eu-west-1","createdAt"`)) != 1 {
		t.Errorf("created: %s", created)
	}
}

// A stored answer from before residencies existed is repeated with the tenant's current
// residency.
func TestAStoredAnswerWithoutAResidency(t *testing.T) {
	w := newTestService(t)
	c := call{"POST", "/api/v1/tenants", bootstrap, map[string]string{"Idempotency-Key": "once"}, `{"name":"T","class":"small"}`}
	first := w.want(201, c)
	w.asOwner(`UPDATE idempotency_answers SET body = (body::jsonb - 'dataResidency')::json`)
	if again := w.want(201, c); again["id"] != first["id"] || again["dataResidency"] != "unspecified" {
		t.Errorf("first %v, again %v", first, again)
	}
}

// asOwner runs a statement as the superuser.
func (w *testService) asOwner(sql string, args ...any) {
	w.Helper()
	pool, err := pgxpool.New(w.Context(), localtest.SuperuserURL(w, w.pool.Config().ConnString()))
	w.must(err)
	defer pool.Close()
	_, err = pool.Exec(w.Context(), sql, args...)
	w.must(err)
}

// Lists and exports render events with the vocabulary of their writer, from the database
// if this release does not embed it. Without it they fail.
func TestP2_EventsAreReadWithTheVocabularyOfTheirWriter(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	w.ingest(a, batch(event("e1", nil)))
	const uri = "/api/v1/schemas/meterplex.usage.event.recorded/v1#sha256="
	document := strings.Replace(events.CurrentVocabulary().Document(), uri, uri+"1ater", 1)
	sum := sha256.Sum256([]byte(document))
	hash := hex.EncodeToString(sum[:])
	w.asOwner(`INSERT INTO log_vocabularies VALUES ($1, $2)`, hash, document)
	w.asOwner(`UPDATE log_origins SET vocabulary = $1`, hash)
	ways := map[string]func(key string) answer{
		"list": func(key string) answer {
			return w.do(call{method: "GET", path: "/api/v1/events?stream=usage/e1&tenantId=" + a.id, key: key})
		},
		"export": func(key string) answer {
			return w.do(call{method: "GET", path: "/api/v1/events/export?stream=usage/e1&tenantId=" + a.id, key: key})
		},
	}
	for name, read := range ways {
		for who, key := range map[string]string{"the tenant": a.key, "an operator": bootstrap} {
			if got := read(key); got.status != 200 || strings.Count(string(got.body), uri+"1ater") != 1 {
				t.Errorf("%s to %s: %d %s", name, who, got.status, got.body)
			}
		}
	}
	w.asOwner(`ALTER TABLE log_origins DROP CONSTRAINT log_origins_vocabulary_fkey`)
	w.asOwner(`DELETE FROM log_vocabularies WHERE hash = $1`, hash)
	for who, key := range map[string]string{"the tenant": a.key, "an operator": bootstrap} {
		if got := ways["list"](key); got.status < 500 || strings.Contains(string(got.body), uri) {
			t.Errorf("to %s, without the vocabulary: %d %s", who, got.status, got.body)
		}
	}
}

// TestP9_ResidenciesAreShownToTheirTenant: tenants share origins. The tenants' role can
// read the residency of an origin only by the place of one of the tenant's own events.
func TestP9_ResidenciesAreShownToTheirTenant(t *testing.T) {
	m := newIsolationFixture(t)
	if _, denied, err := m.asTenant(&m.a.id, `SELECT count(residency) FROM log_origins`); !denied {
		t.Errorf("a tenant reads the residencies of all, %v", err)
	}
	if n, denied, err := m.asTenant(&m.a.id, `SELECT count(actor_id) FROM log_origins`); denied || err != nil || n == 0 {
		t.Errorf("a tenant cannot read its own events' actors: %d, %v", n, err)
	}
	home := m.a.partition()
	shown := fmt.Sprintf(`SELECT count(r) FROM recorded_residencies(array_fill(%d::smallint, ARRAY[1000]), ARRAY(SELECT generate_series(1, 1000)::bigint)) r`, home)
	own := fmt.Sprintf(`SELECT count(*) FROM event_log_rows WHERE partition = %d AND tenant_id = '%s' AND position <= 1000`, home, m.a.id)
	var want int
	m.must(m.pool.QueryRow(t.Context(), own).Scan(&want))
	nobody, empty := newID().String(), ""
	for name, c := range map[string]struct {
		as   *string
		sees int
	}{"A": {&m.a.id, want}, "nobody": {&nobody, 0}, "unset": {nil, 0}, "empty": {&empty, 0}} {
		if n, denied, err := m.asTenant(c.as, shown); err != nil || denied || n != c.sees {
			t.Errorf("%s is shown the residencies of %d of A's %d events (denied %v), %v", name, n, want, denied, err)
		}
	}
	if b := m.b.partition(); b != home {
		if n, _, err := m.asTenant(&m.b.id, shown); n != 0 || err != nil {
			t.Errorf("B is shown the residencies of %d of A's events, %v", n, err)
		}
	}
	var all int
	m.must(m.pool.QueryRow(t.Context(), shown).Scan(&all))
	if all < want || want == 0 {
		t.Errorf("the service sees the residencies of %d events, A alone has %d", all, want)
	}
}
