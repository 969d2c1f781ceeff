package http_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
)

// An action of the console names its key and the console, to operators and to the tenant itself; one of the API only its key.
func TestTheLogNamesActionsOfTheConsole(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, key := w.newAccount("A"), newID()
	name := "B"
	_, err := w.server().Catalogue.ChangeTenant(t.Context(), commands.Request{By: commands.Caller{TenantID: events.Platform, KeyID: key, Via: events.ViaConsole}},
		uuid.MustParse(a.id), commands.ChangeTenant{Name: &name})
	w.must(err)
	w.ingest(a, batch(event("e", nil)))
	all := w.loggedEvents(nil)
	if got := linesWith(all, `"via"`); len(got) != 1 || !strings.Contains(got[0], `"actor":{"type":"api_key","id":"`+key.String()+`","via":"console"}`) || !strings.Contains(got[0], `"eventType":"meterplex.catalogue.tenant.changed"`) {
		t.Fatalf("events with a way: %q", got)
	}
	own := linesWith(w.loggedEvents(a), `"via":"console"`)
	for _, path := range []string{"/api/v1/events?limit=9", "/api/v1/events?limit=9&tenantId=" + a.id} {
		reader := a.key
		if strings.Contains(path, "tenantId") {
			reader, _ = w.key("", nil, "audit")
		}
		if got := linesWith(w.pages(reader, path), `"via":"console"`); len(got) != 1 || got[0] != own[0] {
			t.Errorf("%s: %q, want %q", path, got, own)
		}
	}
}
