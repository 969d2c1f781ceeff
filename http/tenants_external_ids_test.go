package http_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/events"
)

func (w *testService) tenantBy(externalID string) (ids []string) {
	w.Helper()
	for _, entry := range w.want(200, call{"GET", "/api/v1/tenants?externalId=" + externalID, bootstrap, nil, nil})["data"].([]any) {
		ids = append(ids, entry.(map[string]any)["id"].(string))
	}
	return ids
}

// Of concurrent requests with one external id exactly one takes effect: the others are refused with the id's name,
// and store neither a tenant nor an event. Requests that exchange ids do not wait for each other in a circle.
func TestAnExternalIDIsGivenToOneOfConcurrentTenants(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	old := []*account{w.newAccount("A"), w.newAccount("B")}
	for round := range 10 {
		id, other := fmt.Sprint("crm-", round), fmt.Sprint("erp-", round)
		var tenants, recorded int
		w.must(w.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM tenants), (SELECT count(*) FROM event_log
			WHERE subject = ANY ($1))`,
			[]int16{int16(events.TenantCreated), int16(events.TenantChanged)}).Scan(&tenants, &recorded))
		answers := make([]answer, 6)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				ids := []string{id, other}
				if i%2 == 0 {
					slices.Reverse(ids)
				}
				c := call{"POST", "/api/v1/tenants", bootstrap, nil, map[string]any{"name": "N", "class": "small", "externalIds": ids}}
				if i < len(old) {
					c = call{"PATCH", "/api/v1/tenants/" + old[i].id, bootstrap, nil, map[string]any{"externalIds": ids}}
				}
				answers[i] = w.do(c)
			})
		}
		all.Wait()
		made, changed := 0, 0
		for i, a := range answers {
			switch {
			case a.status < 300 && i < len(old):
				changed++
			case a.status < 300:
				made++
			default:
				if w.refused(a, 409, "external_id_taken"); !strings.Contains(string(a.body), id) {
					t.Errorf("the refusal does not name %s: %s", id, a.body)
				}
			}
		}
		var tenantsNow, recordedNow int
		w.must(w.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM tenants), (SELECT count(*) FROM event_log
			WHERE subject = ANY ($1))`,
			[]int16{int16(events.TenantCreated), int16(events.TenantChanged)}).Scan(&tenantsNow, &recordedNow))
		if made+changed != 1 || tenantsNow != tenants+made || recordedNow != recorded+1 || len(w.tenantBy(id)) != 1 {
			t.Fatalf("round %d: %d made, %d changed, %d more tenants, %d more events, %q have the id", round, made, changed,
				tenantsNow-tenants,
				recordedNow-recorded, w.tenantBy(id))
		}
	}
}

// GET /tenants?externalId= finds the tenant that has the id now, and only that one.
func TestATenantIsFoundByItsExternalID(t *testing.T) {
	w := newTestService(t)
	create := func(body string) map[string]any {
		return w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, body})
	}
	made := create(`{"name":"A","class":"small","externalIds":["z:1","a%2F\"?"],"metadata":{"segment":"retail","note":""}}`)
	id, b := made["id"].(string), create(`{"name":"B","class":"small","externalIds":["b:1"]}`)["id"].(string)
	for _, shown := range []map[string]any{made, w.get("/tenants/" + id)} {
		w.same("the tenant", valuesOf(shown, "externalIds", "metadata"), `[a%2F"? z:1] map[note: segment:retail]`)
	}
	w.refused(w.do(call{"PATCH", "/api/v1/tenants/" + b, bootstrap, nil, `{"name":"B2","externalIds":["b:2","z:1"]}`}), 409,
		"external_id_taken")
	w.same("after a refused change", fmt.Sprint(w.get("/tenants/" + b)["name"], w.tenantBy("b:1"), w.tenantBy("b:2")),
		fmt.Sprint("B", []string{b}, []string{}))
	w.want(200, call{"PATCH", "/api/v1/tenants/" + id, bootstrap, nil, `{"class":"large"}`})
	w.same("found", fmt.Sprint(w.tenantBy("z:1"), w.tenantBy("a%252F%22%3F"), w.tenantBy("Z:1")),
		fmt.Sprint([]string{id}, []string{id}, []string{}))
	got := w.want(200, call{"PATCH", "/api/v1/tenants/" + id, bootstrap, nil, `{"externalIds":[],"metadata":{}}`})
	w.same("removed", valuesOf(got, "externalIds", "metadata"), "<nil> <nil>")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + b, bootstrap, nil, `{"externalIds":["z:1"]}`})
	w.same("given to another", w.tenantBy("z:1"), []string{b})
}
