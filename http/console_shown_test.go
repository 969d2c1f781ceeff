package http_test

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// TestConsole_PeriodsShowWhatTheAPIAnswers: figures, hashes and files, digit for digit.
func TestConsole_PeriodsShowWhatTheAPIAnswers(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	w.priced()
	a := w.newAccount("A")
	w.accept(a, old("one", 1<<53-1), old("two", 2))
	w.fold()
	key, _ := lastMonth()
	b, at := w.signIn(bootstrap), "/console/tenants/"+a.id+"/periods/"+key
	b.shows(b.open(at), "live figures", hugeShown, "no frozen line")
	path := w.closed(a)
	read := w.want(200, call{method: "GET", path: path, key: bootstrap})
	charges := w.want(200, call{method: "GET", path: path + "/charges", key: bootstrap})["totals"].([]any)[0].(map[string]any)
	b.shows(b.withoutSeparators(at), "CLOSED", huge, read["figuresHash"].(string), read["logicHash"].(string), charges["decimal"].(string),
		"billable amounts")
	b.shows(b.withoutSeparators("/console/evaluation?priceKey=calls&version=1&periodKey="+key), "All tenants", ">A</a>", "billable",
		charges["decimal"].(string)+" EUR")
	lines, exported := b.open(at+"/lines.csv"), w.do(call{method: "GET", path: path + "/export?format=csv", key: bootstrap})
	if string(lines.body) != string(exported.body) || !strings.Contains(lines.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("the file is %d %s, and the export %s", lines.status, lines.body, exported.body)
	}
	w.holds("the file", string(b.open(at+"/period.json?snapshot=1").body), `"figuresHash":"`+read["figuresHash"].(string))
}

// withoutSeparators opens a page, and removes the separators of its numbers.
func (b *browser) withoutSeparators(path string) answer {
	b.Helper()
	page := b.open(path)
	page.body = regexp.MustCompile(`([0-9]),`).ReplaceAll(page.body, []byte("$1"))
	return page
}

// TestConsole_EntitlementsShowUsedHeldAndLimit: operators choose a tenant, a tenant's key sees its own.
func TestConsole_EntitlementsShowUsedHeldAndLimit(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, event("one", map[string]any{"amount": 123}))
	w.want(201, holding(a.key, "job/1", 77, 3600))
	w.fold()
	const figures = `<td class="number">123</td><td class="number">77</td><td class="number">1,000</td>`
	b, own := w.signIn(bootstrap), w.signIn(a.key)
	b.shows(b.open("/console/entitlements"), "Choose a tenant", `/console/entitlements?tenantId=`+a.id)
	b.shows(b.open("/console/entitlements?tenantId="+a.id), figures, `low="799" high="1000" optimum="0" max="1000"`, "<span>12 %</span>",
		"-01 00:00:00Z", "True at position")
	list := b.open("/console/reservations?feature=api_calls&tenantId=" + a.id)
	b.shows(list, "job/1", "HELD", `<td class="number">77</td>`)
	b.hides(list, "/release")
	own.shows(own.open("/console/entitlements"), "123", "77", "1,000", "meterplex entitlements list")
	own.shows(own.open("/console/reservations?feature=api_calls"), "/release")
}

// TestConsole_DeadLettersAreShownByCause, with the member at fault.
func TestConsole_DeadLettersAreShownByCause(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.rejections(a, "gone", 3)
	w.rejections(a, "lost", 1)
	b, letter := w.signIn(bootstrap), w.letters("?feature=gone")[0]
	b.shows(b.open("/console/dead-letters"), "feature_not_found", "Feature &#34;gone&#34; not found",
		strings.Repeat(`<td class="number">3</td>`, 2)+`<td class="number">0</td>`+strings.Repeat(`<td class="number">3</td>`, 2))
	one := b.open("/console/dead-letters?feature=gone&fingerprint=" + letter["fingerprint"].(string) +
		"&status=FAILED&stage=VALIDATION&tenantId=" + a.id)
	b.shows(one, "gone")
	b.hides(one, "lost")
	id := letter["id"].(string)
	b.shows(b.open("/console/dead-letters/"+id), "<mark>&#34;feature&#34;: &#34;gone&#34;</mark>",
		`action="/console/dead-letters/`+id+`/retry"`)
}

// TestConsole_FormsKeepEachDigit: what a form holds is what the API gets, and a refused form is shown again as it was sent.
func TestConsole_FormsKeepEachDigit(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.signIn(bootstrap)
	area := func(page answer) string {
		found := regexp.MustCompile(`(?s)<textarea[^>]* name="entitlements"[^>]*>(.*?)</textarea>`).FindSubmatch(page.body)
		return html.UnescapeString(string(found[1]))
	}
	const plan = "/console/catalogue/plans/basic"
	for _, wrong := range []string{`[{"feature":"sso","limit":5.0}]`, `[{"feature":"api_calls","limit":1,"limit":2}]`, `{} []`} {
		got := b.act(b.open(plan), plan+"/change", "r", url.Values{"name": {"Basic"}, "entitlements": {wrong}})
		if got.status != 400 || area(got) != wrong {
			t.Errorf("%s gives %d, and the form holds %q:\n%s", wrong, got.status, area(got), got.body)
		}
	}
	sent := url.Values{"name": {"Basic"}, "entitlements": {`[{"feature":"api_calls","limit":9007199254740991}]`}}
	b.shows(b.twice(b.open(plan), plan+"/change", "r", sent), `name="entitlements.0.limit" type="text" value="9007199254740991"`)
	b.shows(b.open(plan), "Subscriptions on older snapshots", a.subscription)

	at := "/console/tenants/" + a.id
	changing := b.open(at + "/change")
	// meanwhile: the form does not revert it
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{"lateUsage":"ADJUST"}`})
	b.shows(b.twice(changing, at+"/change", "a new contract", url.Values{"name": {hostile}, "class": {"large"}, "lateUsage": {"REJECT"},
		"closeAfterHours": {"24"}, "externalIds": {"crm-1\r\n=crm-2\r\n"}, "metadata": {`{"<b>": "=1"}`}}),
		hostileShown, "24 h after their end", "=crm-2, crm-1", "<dt>&lt;b&gt;</dt><dd>=1</dd>", "ADJUST")
	w.once(events.TenantChanged, 1)
}
