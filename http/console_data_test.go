package http_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
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

// TestConsole_AThousandFeaturesArePaged: in the catalogue, and as figures and accounts of a tenant.
func TestConsole_AThousandFeaturesArePaged(t *testing.T) {
	tier.AtSize(t)
	w, a := newServiceWithAccount(t)
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
