package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// newAnsweringService answers every request with a status and a body, and records the requests.
func newAnsweringService(t *testing.T, status int, body string) (p *fakeService) {
	p = &fakeService{t: t}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		p.requests = append(p.requests, fmt.Sprintf("%s %s %s", r.Method, r.URL.RequestURI(), sent))
		if status/100 != 2 {
			w.Header().Set("Content-Type", "application/problem+json")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}

const (
	grantedOne = `{"allowed":true,"feature":"calls","eventId":"req-1","amount":3,"periodKey":"2026-11","limit":2000,"used":953,"held":40,"remaining":1007,"resetAt":"2026-12-01T00:00:00Z","position":"17-4711"}`
	grantedTwo = `{"data":[` + grantedOne + `,{"allowed":true,"feature":"bytes","eventId":"r1-b","amount":1800,"periodKey":"lifetime","limit":null,"used":null,"held":null,"remaining":null,"resetAt":null,"position":"17-4712"}]}`
)

func TestConsumePrintsTheGrant(t *testing.T) {
	for _, c := range []struct{ args, answer, request, want string }{
		{"calls --amount 3 --event-id req-1 --metadata model=large", grantedOne, `POST /api/v1/entitlements/calls/consume {"eventId":"req-1","amount":3,"metadata":{"model":"large"}}`, "remaining  1007"},
		{"calls --event-id req-1 -o json", grantedOne, `POST /api/v1/entitlements/calls/consume {"eventId":"req-1","amount":1}`, `"position": "17-4711"`},
		{"--item calls=3,req-1 --item bytes=1800,r,1=b", grantedTwo, `POST /api/v1/entitlements/consume {"items":[{"feature":"calls","eventId":"req-1","amount":3},{"feature":"bytes","eventId":"r,1=b","amount":1800}]}`, "bytes    r1-b     1800    lifetime"},
		{"--item calls=3,req-1 --item bytes=1800,r1-b -o ndjson", grantedTwo, `POST /api/v1/entitlements/consume {"items":[{"feature":"calls","eventId":"req-1","amount":3},{"feature":"bytes","eventId":"r1-b","amount":1800}]}`, grantedOne + "\n"},
	} {
		p := newAnsweringService(t, 200, c.answer)
		code, out, errs := newConsole(t, p).run(strings.Fields("entitlements consume " + c.args)...)
		if code != exitYes || len(p.requests) != 1 || p.requests[0] != c.request || !strings.Contains(out, c.want) || errs != "" {
			t.Errorf("%s: exit code %d\n%q\n%s%s", c.args, code, p.requests, out, errs)
		}
	}
}

// Without --event-id each request has an id of its own.
func TestConsumeMakesEventIDs(t *testing.T) {
	ids := map[string]bool{}
	for _, args := range []string{"calls", "calls", "--item calls=1 --item bytes=2"} {
		p := newAnsweringService(t, 200, grantedTwo)
		if code, _, errs := newConsole(t, p).run(strings.Fields("entitlements consume " + args)...); code != exitYes {
			t.Errorf("%s: exit code %d\n%s", args, code, errs)
		}
		for _, id := range regexp.MustCompile(`"eventId":"(cli_[^"]{20,})"`).FindAllStringSubmatch(p.requests[0], -1) {
			ids[id[1]] = true
		}
	}
	if len(ids) != 4 {
		t.Errorf("%v", ids)
	}
}

func TestConsumePrintsTheRefusal(t *testing.T) {
	exceeded := `{"status":409,"code":"quota_exceeded","detail":"The limit of calls does not allow this amount","errors":[{"pointer":"/amount","code":"quota_exceeded","detail":"The limit of calls does not allow this amount"}],`
	for _, c := range []struct {
		status, code int
		body, want   string
		ids          bool // are printed, because the outcome is unknown
	}{
		{409, exitNo, exceeded + `"limit":955,"used":953,"held":0,"remaining":2,"resetAt":"2026-12-01T00:00:00Z"}`, "remaining 2, limit 955, used 953, held 0, resetAt 2026-12-01T00:00:00Z\n  hint: Ask for less", false},
		{409, exitNo, exceeded + `"limit":955,"used":953,"held":0,"remaining":0,"resetAt":null}`, "remaining 0, limit 955, used 953, held 0, resetAt never", false},
		{409, exitNo, `{"code":"payload_conflict","detail":"other"}`, "payload_conflict: other\n  hint: Send the event under an eventId of its own", false},
		{409, exitNo, `{"code":"no_active_subscription","detail":"none"}`, "hint: Create a subscription", false},
		{404, exitNo, `{"code":"feature_not_found","detail":"none"}`, "hint: Name a feature of the subscription", false},
		{403, exitUnknown, `{"code":"forbidden","detail":"lacks entitlements:reserve"}`, "forbidden: lacks entitlements:reserve", false},
		{400, exitUnknown, `{"code":"amount_invalid","detail":"no"}`, "amount_invalid: no", false},
		{503, exitUnknown, `{"code":"unavailable","detail":"later"}`, "The outcome is unknown. Send the request again with the same event ids, it counts once: req-1", true},
	} {
		p := newAnsweringService(t, c.status, c.body)
		code, out, errs := newConsole(t, p).run("entitlements", "consume", "calls", "--event-id", "req-1", "--retry-for", "1ms")
		if code != c.code || out != "" || !strings.Contains(errs, c.want) || strings.Contains(errs, "is unknown") != c.ids {
			t.Errorf("%s: exit code %d\n%s%s", c.body, code, out, errs)
		}
	}
}

func TestConsumeRefusesBadArguments(t *testing.T) {
	for args, want := range map[string]string{
		"": "give a feature, or --item", "calls --item calls=1": "not both", "--item calls=1 --amount 2": "not both", "--item calls=1 --event-id x": "not both",
		"--item calls": "write feature=amount", "--item calls=1.5,x": "write feature=amount", "--item calls=,x": "write feature=amount", "calls --amount x": "expected",
	} {
		p := newAnsweringService(t, 200, grantedOne)
		if code, _, errs := newConsole(t, p).run(strings.Fields("entitlements consume " + args)...); code != exitUnknown || len(p.requests) != 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %q\n%s", args, code, p.requests, errs)
		}
	}
	p := newAnsweringService(t, 200, `{}`)
	if code, _, errs := newConsole(t, p).run("entitlements", "consume", "--item", "calls=1,a"); code != exitUnknown || !strings.Contains(errs, "does not have 1 items") {
		t.Errorf("an answer without items: exit code %d\n%s", code, errs)
	}
}
