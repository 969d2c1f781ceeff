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
		w.must(w.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM tenants), (SELECT count(*) FROM event_log WHERE subject = ANY ($1))`,
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
		w.must(w.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM tenants), (SELECT count(*) FROM event_log WHERE subject = ANY ($1))`,
			[]int16{int16(events.TenantCreated), int16(events.TenantChanged)}).Scan(&tenantsNow, &recordedNow))
		if made+changed != 1 || tenantsNow != tenants+made || recordedNow != recorded+1 || len(w.tenantBy(id)) != 1 {
			t.Fatalf("round %d: %d made, %d changed, %d more tenants, %d more events, %q have the id", round, made, changed, tenantsNow-tenants, recordedNow-recorded, w.tenantBy(id))
		}
	}
}

// GET /tenants?externalId= finds the tenant that has the id now, and only that one.
func TestATenantIsFoundByItsExternalID(t *testing.T) {
	w := newTestService(t)
	made := w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"A","class":"small","externalIds":["z:1","a%2F\"?"],"metadata":{"segment":"retail","note":""}}`})
	id := made["id"].(string)
	if fmt.Sprint(made["externalIds"], made["metadata"]) != `[a%2F"? z:1] map[note: segment:retail]` {
		t.Errorf("%v", made)
	}
	if got := w.want(200, call{"GET", "/api/v1/tenants/" + id, bootstrap, nil, nil}); fmt.Sprint(got["externalIds"], got["metadata"]) != fmt.Sprint(made["externalIds"], made["metadata"]) {
		t.Errorf("%v instead of %v", got, made)
	}
	for _, sent := range []string{"z:1", "a%252F%22%3F"} {
		if got := w.tenantBy(sent); !slices.Equal(got, []string{id}) {
			t.Errorf("%s: %q instead of %s", sent, got, id)
		}
	}
	if got := w.tenantBy("Z:1"); len(got) != 0 {
		t.Errorf("another id finds %q", got)
	}
	b := w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"B","class":"small","externalIds":["b:1"]}`})["id"].(string)
	w.refused(w.do(call{"PATCH", "/api/v1/tenants/" + b, bootstrap, nil, `{"name":"B2","externalIds":["b:2","z:1"]}`}), 409, "external_id_taken")
	if got := w.want(200, call{"GET", "/api/v1/tenants/" + b, bootstrap, nil, nil}); got["name"] != "B" || !slices.Equal(w.tenantBy("b:1"), []string{b}) || w.tenantBy("b:2") != nil {
		t.Errorf("a refused change is stored: %v", got)
	}
	w.want(200, call{"PATCH", "/api/v1/tenants/" + id, bootstrap, nil, `{"class":"large"}`})
	if got := w.tenantBy("z:1"); !slices.Equal(got, []string{id}) {
		t.Errorf("a change of the class removed the ids: %q", got)
	}
	got := w.want(200, call{"PATCH", "/api/v1/tenants/" + id, bootstrap, nil, `{"externalIds":[],"metadata":{}}`})
	if got["externalIds"] != nil || got["metadata"] != nil || w.tenantBy("z:1") != nil {
		t.Errorf("removed ids are found: %v", got)
	}
	w.want(200, call{"PATCH", "/api/v1/tenants/" + b, bootstrap, nil, `{"externalIds":["z:1"]}`})
	if got := w.tenantBy("z:1"); !slices.Equal(got, []string{b}) {
		t.Errorf("%q instead of %s", got, b)
	}
}
