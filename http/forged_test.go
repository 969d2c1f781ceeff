package http_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/http"
)

// A cursor is not secret: a client can decode it and forge one to any position. The answer
// is then a page or a refusal of the cursor or position, never a database error.
func TestForgedCursorsAreAnsweredOrRefused(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	p := w.newAccount("Acme")
	for n := range 5 {
		w.want(202, call{"POST", "/api/v1/usage/events", p.key, nil,
			batch(event(fmt.Sprint("f", n), nil), event(fmt.Sprint("g", n), map[string]any{"feature": "storage"}))})
	}
	w.fold()
	head := w.want(200, call{"GET", "/api/v1/usage/aggregates", p.key, nil, nil})["asOfPosition"].(string)
	partition, _, _ := strings.Cut(head, "-")
	month := time.Now().UTC().Format("2006-01")
	lists := cursorLists(p, head, month)
	answered, refused := map[string]int{}, map[string]int{}
	numbers := []string{"0", "1", "2", "7", "-1", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "2147483648", "x",
		"", "1e3"}
	words := append([]string{"calls", "api_calls", "2026-05", "lifetime", "é\u202e", "'", "\x7f", p.id, p.subscription, "live", "then",
		partition + "-1", head, "{" + p.id + "}"}, numbers...)
	rapid.Check(t, func(rt *rapid.T) {
		// N is a number, W a word, U an id, P a position.
		var after strings.Builder
		for _, c := range rapid.SampledFrom([]string{"N|W|W|U", "N|U|W|U", "N|N|W|W|U", "live|N|N|N|N|N", "then|N|N|N|N|N", "U", "U|W|W|U",
			"N/W", "N", "P", "P,P", "W", "W|W/W"}).Draw(rt, "shape") {
			from := map[rune][]string{'N': numbers, 'W': words, 'U': {p.id, p.subscription, "{" + p.id + "}"},
				'P': {head, partition + "-1", "0-9223372036854775807", "31-0"}}[c]
			if from == nil {
				after.WriteRune(c)
				continue
			}
			after.WriteString(rapid.SampledFrom(from).Draw(rt, "part"))
		}
		generation := rapid.SampledFrom([]int{0, 1, -1, 1 << 31, 1 << 62}).Draw(rt, "generation")
		for path, list := range lists {
			key := p.key
			path, rest, _ := strings.Cut(path, "?")
			if strings.HasPrefix(rest, "opera") {
				key, rest = bootstrap, strings.TrimPrefix(rest, "operator=&")
			}
			a := w.do(call{"GET", "/api/v1" + path + "?limit=2&" + strings.TrimSuffix(rest+"&", "&") + "&cursor=" +
				url.QueryEscape(http.ForgeCursor(generation, after.String(), list...)), key, nil, nil})
			switch {
			case a.status == 200:
				answered[path]++
			case a.status == 400:
				refused[path]++
				code := "cursor_invalid"
				if strings.Contains(string(a.body), `"position_invalid"`) {
					code = "position_invalid" // an error of the log, which parses the position
				}
				w.refused(a, 400, code)
			default:
				rt.Fatalf("%s after %q of %d: %d %s", path, after.String(), generation, a.status, a.body)
			}
		}
	})
	if (answered["/usage/aggregates"] == 0 || answered["/events"] == 0) && !testing.Short() {
		t.Error("no forged cursor was read: the lists are others")
	}
	t.Logf("answered %v\nrefused %v", answered, refused)
}

// cursorLists are lists of an account with pages: the query of each, and the words that its cursors are bound to.
func cursorLists(p *account, head, month string) map[string][]string {
	return map[string][]string{
		"/usage/aggregates?":                                             {"aggregates", p.id, "", "", "", ""},
		"/usage/aggregates?asOfPosition=" + head:                         {"aggregates", p.id, "", "", head, ""},
		"/usage/aggregates?operator=&period=" + month:                    {"aggregates of all tenants", "", month, ""},
		"/usage/events?":                                                 {"usage events", p.id, "", "", "", ""},
		"/usage/aggregates/explain?feature=api_calls&periodKey=" + month: {"explain", p.id, "api_calls", month, "", "", ""},
		"/usage/conflicts?":                                              {"conflicts", p.id},
		"/usage/refusals?":                                               {"refusals", "", "", "", ""},
		"/events?":                                                       {"events", p.id, "", "", "", "", "", ""},
		"/dead-letters?operator=&":                                       {"dead letters", "", "", "", "", "", "", "", "", "", ""},
		"/dead-letters/groups?operator=&":                                {"dead letter groups", "", "", "", "", "", "", "", "", "", ""},
		"/rebuilds?operator=&":                                           {"rebuilds"},
		"/plans?operator=&":                                              {"plans"},
		"/features?operator=&":                                           {"features"},
		"/prices?operator=&":                                             {"prices"},
		"/tenants?operator=&":                                            {"tenants"},
		"/tenants/" + p.id + "/api-keys?operator=&":                      {"keys", p.id},
		"/tenants/" + p.id + "/subscriptions?operator=&":                 {"subscriptions", p.id},
		"/usage?feature=api_calls&from=2026-01-01T00:00:00Z&to=2027-01-01T00:00:00Z&granularity=month&groupBy=metadata.region": {"series",
			p.id, "api_calls", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "month", "metadata.region"},
	}
}
