package http_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// A tenant has the residency of its creation, or the deployment's region by default; a
// change is an event. Each event keeps the residency under which it was recorded.
func TestTenantsHaveADataResidency(t *testing.T) {
	w, a := newServiceWithAccount(t, func(s *http.Server) { s.Catalogue.Region = "eu-west-1" })
	tenant := "/api/v1/tenants/" + a.id
	w.same("of a tenant that names none", w.get("/tenants/" + a.id)["dataResidency"], "eu-west-1")
	named := w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"N","class":"small","dataResidency":"us-east-1"}`})
	w.same("created with", named["dataResidency"], "us-east-1")
	w.ingest(a, batch(event("before", nil)))
	for _, body := range []string{`{"dataResidency":"ap-south-1"}`, `{"dataResidency":"ap-south-1"}`, `{"name":"B","dataResidency":null}`} {
		w.same("changed to", w.want(200, call{"PATCH", tenant, bootstrap, nil, body})["dataResidency"], "ap-south-1")
	}
	w.ingest(a, batch(event("after", nil)))
	w.fold()
	for _, key := range []string{a.key, bootstrap} {
		list := w.pages(key, "/api/v1/events?limit=1000&tenantId="+a.id)
		for _, line := range list {
			want := "eu-west-1"
			if strings.Contains(line, `"after"`) || strings.Contains(line, "tenant.changed") {
				want = "ap-south-1"
			}
			_, metadata, _ := strings.Cut(line, `"metadata":{"retentionClass":"`)
			w.holds("the metadata", metadata, `"dataResidency":"`+want)
		}
		w.same("changes", len(linesWith(list, "tenant.changed")), 2)
	}
	created := linesWith(w.pages(bootstrap, "/api/v1/events?limit=1000"), `"eventType":"meterplex.catalogue.tenant.created"`)
	for _, residency := range []string{"us-east-1", "eu-west-1"} {
		w.same("created in "+residency, len(linesWith(created, `"dataResidency":"`+residency+`","createdAt"`)), 1)
	}
}

// exec runs a statement as the service.
func (w *testService) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, args...)
	w.must(err)
}

// superuser opens a session of the superuser.
func (w *testService) superuser() *pgx.Conn {
	w.Helper()
	conn, err := pgx.Connect(w.Context(), localtest.SuperuserURL(w, w.pool.Config().ConnString()))
	w.must(err)
	w.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// asOwner runs a statement as the superuser.
func (w *testService) asOwner(sql string, args ...any) {
	w.Helper()
	must.Exec(w, w.superuser(), sql, args...)
}

// Lists and exports render events with the vocabulary of their writer, from the database
// if this release does not embed it. Without it they fail.
func TestP2_EventsAreReadWithTheVocabularyOfTheirWriter(t *testing.T) {
	w, a := newServiceWithAccount(t)
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
