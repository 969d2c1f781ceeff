package e2e

import (
	"fmt"
	"net/http"
	"sync"
)

// frozenTenants are two tenants of which an instance has admitted usage before it is frozen. Meanwhile one is archived, and the key of the
// other is revoked.
type frozenTenants struct {
	x                 *torture
	archived, revoked *tenant
	sent              sync.WaitGroup
}

func (x *torture) newFrozenTenants(m *instance) *frozenTenants {
	f := &frozenTenants{x: x, archived: x.w.createTenant(m), revoked: x.w.createTenant(m)}
	return f
}

// send sends requests to the instance, which queues them: the heads are held.
func (f *frozenTenants) send(m *instance) {
	for _, of := range []*tenant{f.archived, f.revoked} {
		for n := range 20 {
			f.sent.Go(func() {
				_, _, _ = f.x.w.call(f.x.t.Context(), of.key, http.MethodPost, m.url()+"/api/v1/usage/events",
					object{"events": events(fmt.Sprint("frozen-", n), 1, features()[0])})
			})
		}
	}
}

// end ends the tenant and the key on another instance.
func (f *frozenTenants) end(other *instance) {
	w, id := f.x.w, ""
	if err := w.sql.QueryRow(f.x.t.Context(), `SELECT id::text FROM api_keys WHERE tenant_id = $1`, f.revoked.id).Scan(&id); err != nil {
		w.t.Error(err)
	}
	w.ask(w.operator, http.MethodDelete, other, "/api/v1/tenants/"+f.revoked.id+"/api-keys/"+id, nil, nil, http.StatusNoContent)
	offboard(w, other, f.archived)
}

// check waits until the instance, which is resumed, has answered: no usage is recorded behind the ends. verify repeats the check for the
// archived tenant.
func (f *frozenTenants) check() {
	f.sent.Wait()
	late := f.x.w.count(`SELECT (SELECT count(*) FROM event_log_rows l JOIN offboardings o USING (tenant_id) WHERE o.tenant_id = $1
		AND l.subject = 1 AND l.position > o.drained_to)
 + (SELECT count(*) FROM event_log_rows l JOIN event_log_rows e USING (tenant_id) WHERE e.tenant_id = $2 AND e.subject = 34
 AND l.subject = 1 AND l.position > e.position)`,
		f.archived.id, f.revoked.id)
	if late > 0 {
		f.x.t.Errorf("%d events are recorded behind the end of their tenant or key", late)
	}
}
