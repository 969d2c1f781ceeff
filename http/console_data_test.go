package http_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// walk opens a page and all pages after it, each below the bound of its HTML, and returns the texts of a group that they show.
func (b *browser) walk(path string, shown *regexp.Regexp) map[string]int {
	b.Helper()
	all := map[string]int{}
	for pages := 0; path != ""; pages++ {
		page := b.open(path)
		if b.shows(page); len(page.body) > maxPage || pages > 100 {
			b.Fatalf("%s, page %d, has %d bytes", path, pages, len(page.body))
		}
		for _, found := range shown.FindAllSubmatch(page.body, -1) {
			all[string(found[1])]++
		}
		path = b.next(page)
	}
	return all
}

// TestConsole_NoTenantAndOneTenant: the pages that list tenants, or begin with the choice of one.
func TestConsole_NoTenantAndOneTenant(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	b := w.signIn(bootstrap)
	pages := []string{"/console/tenants", "/console/usage", "/console/events", "/console/entitlements", "/console/entitlements/comparison", "/console/reservations", "/console/adjustments/decision", "/console/search?q=Lonely",
		"/console/usage/events", "/console/usage/conflicts", "/console/usage/explain", "/console/dead-letters", "/console/pushes", "/console/sagas", "/console/rebuilds", "/console/system"}
	for _, path := range pages {
		page := b.open(path)
		if b.shows(page, "<h1>"); strings.Contains(string(page.body), "Lonely</") {
			t.Errorf("%s shows a tenant that does not exist", path)
		}
	}
	id := w.newAccountlessTenant("Lonely")
	for n, path := range pages[:6] {
		page := b.open(path)
		if b.shows(page); n != 1 && n != 2 && !strings.Contains(string(page.body), id) {
			t.Errorf("%s does not show the tenant:\n%s", path, page.body)
		}
	}
	b.shows(b.open("/console/tenants/"+id), "Lonely", "has no subscription", "has no key", "No usage of the tenant is counted yet", "has no account")
	for _, path := range []string{"/console/usage?tenantId=" + id, "/console/entitlements?tenantId=" + id, "/console/entitlements/comparison?tenantId=" + id, "/console/reservations?tenantId=" + id,
		"/console/adjustments/decision?tenantId=" + id, "/console/tenants/" + id + "/periods", "/console/events?tenantId=" + id} {
		b.shows(b.open(path))
	}
}

// TestConsole_AThousandFeaturesArePaged: in the catalogue, and as figures and accounts of a tenant.
func TestConsole_AThousandFeaturesArePaged(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	w.accept(a, event("one", nil))
	w.fold()
	const of = `lpad(n::text, 64, 'f')`
	w.asOwner(`INSERT INTO features (lookup_key, name, type, unit) SELECT ` + of + `, repeat('界', 200), 'QUOTA', 'each' FROM generate_series(1, 1000) n`)
	w.asOwner(`INSERT INTO usage_aggregates SELECT (jsonb_populate_record(u, jsonb_build_object('feature', `+of+`))).* FROM usage_aggregates u, generate_series(1, 1000) n WHERE tenant_id = $1`, a.id)
	w.asOwner(`INSERT INTO quota_accounts SELECT tenant_id, `+of+`, period_key, 9007199254740993, 1 FROM quota_accounts, generate_series(1, 1000) n WHERE tenant_id = $1`, a.id)
	b := w.signIn(bootstrap)
	for path, shown := range map[string]string{
		"/console/catalogue?list=features": `features/(f+[0-9]+)"`, "/console/usage?tenantId=" + a.id: `feature=(f+[0-9]+)[^"]*">f`, "/console/entitlements?tenantId=" + a.id: `<td>(?:<a[^>]*>)?(f+[0-9]+)(?:</a>)?</td>`,
	} {
		all := b.walk(path, regexp.MustCompile(shown))
		for name, n := range all {
			if n != 1 {
				t.Errorf("%s shows %s %d times", path, name, n)
			}
		}
		if len(all) != 1000 {
			t.Errorf("%s shows %d features", path, len(all))
		}
	}
	for _, path := range []string{"/console/catalogue", "/console/tenants/" + a.id, "/console/reservations?tenantId=" + a.id, "/console/usage?feature=" + fmt.Sprintf("%064d", 1)} {
		if page := b.open(path); page.status >= 500 || len(page.body) > maxPage {
			t.Errorf("%s gives %d and %d bytes", path, page.status, len(page.body))
		}
	}
}

// TestConsole_MetadataAtItsLimits: of usage, in lists, envelopes and receipts.
func TestConsole_MetadataAtItsLimits(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	var batch []any
	for n := range 60 {
		notes := map[string]any{"region": strings.Repeat("&", 2000), strings.Repeat("界", 64): strings.Repeat("<", 1700)}
		batch = append(batch, event(fmt.Sprint(strings.Repeat("&", 240), n), map[string]any{"metadata": notes}))
	}
	w.accept(a, batch...)
	w.fold()
	b := w.signIn(bootstrap)
	for _, path := range []string{"/console/usage/events", "/console/events?subject=meterplex.usage.event.recorded", "/console/usage?feature=api_calls", "/console/usage/explain?feature=api_calls&period=" + time.Now().UTC().Format("2006-01")} {
		sign := "?"
		if strings.Contains(path, "?") {
			sign = "&"
		}
		page := b.open(path + sign + "tenantId=" + a.id)
		if b.shows(page); len(page.body) > maxPage {
			t.Errorf("%s has %d bytes", path, len(page.body))
		}
		if link := regexp.MustCompile(`href="(/console/(?:usage/events|events)/[^".]*)"`).FindSubmatch(page.body); link != nil {
			one := b.open(strings.ReplaceAll(string(link[1]), "&amp;", "&"))
			if b.shows(one, "region"); len(one.body) > maxPage {
				t.Errorf("%s has %d bytes", link[1], len(one.body))
			}
		}
	}
}

// TestConsole_ALineageOf10000EffectsGoesOn: the lineage shows the first thousand, and leads to all events of its trace, page by page.
func TestConsole_ALineageOf10000EffectsGoesOn(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	root, trace := newID(), newID()
	list := []events.Pending{w.caused(a, "root", root, uuid.Nil, trace)}
	for n := range 10_000 {
		list = append(list, w.caused(a, fmt.Sprint("effect-", n), newID(), root, trace))
	}
	for len(list) > 0 {
		n := min(len(list), 1000)
		w.must(pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
			_, err := w.log.AppendTx(t.Context(), tx, list[:n])
			return err
		}))
		list = list[n:]
	}
	b := w.signIn(bootstrap)
	page := b.open("/console/events/" + root.String() + "/lineage?tenantId=" + a.id)
	b.shows(page, "1000 events", "Events 1 to 200", "The lineage has more events than this")
	at := b.link(page, "/console/events?correlationId="+trace.String())
	seen := map[string]bool{}
	for range 4 {
		log := b.open(at)
		if b.shows(log); len(log.body) > maxPage {
			t.Fatalf("%s has %d bytes", at, len(log.body))
		}
		before := len(seen)
		for _, found := range regexp.MustCompile(`effect-[0-9]+`).FindAll(log.body, -1) {
			seen[string(found)] = true
		}
		if len(seen) < before+49 {
			t.Fatalf("%s shows %d more effects", at, len(seen)-before)
		}
		at = b.next(log)
	}
	rest := w.want(200, call{method: "GET", path: "/api/v1/events?limit=1000&tenantId=" + a.id + "&correlationId=" + trace.String(), key: bootstrap})
	if n := len(rest["data"].([]any)); n != 1000 || rest["nextCursor"] == nil {
		t.Errorf("the trace has %d events on a page, and %v", n, rest["nextCursor"])
	}
}

// caused is an event of usage with its cause and its trace.
func (w *testService) caused(a *account, name string, id, cause, trace uuid.UUID) events.Pending {
	return events.Pending{EventID: id, Subject: events.UsageRecorded, TenantID: uuid.MustParse(a.id), DedupeKey: events.KeyUsage(name), CausationID: cause, CorrelationID: trace,
		Actor: events.Actor{Type: "system", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Counts: events.Counts{Accepted: 1},
		Payload: json.RawMessage(`{"amount":1,"eventId":"` + name + `","feature":"api_calls","timestamp":"` + now() + `","type":"usage"}`)}
}
