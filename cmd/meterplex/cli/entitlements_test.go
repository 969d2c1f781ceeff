package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
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
	grantedOne = `{"allowed":true,"feature":"calls","eventId":"req-1","amount":3,"periodKey":"2026-11","limit":2000,"used":953,"held":40,` +
		`"remaining":1007,"resetAt":"2026-12-01T00:00:00Z","position":"17-4711"}`
	grantedTwo = `{"data":[` + grantedOne +
		`,{"allowed":true,"feature":"bytes","eventId":"r1-b","amount":1800,"periodKey":"lifetime","limit":null,"used":null,"held":null,` +
		`"remaining":null,"resetAt":null,"position":"17-4712"}]}`
)

const (
	heldOne = `{"reservationId":"r-1","feature":"tokens","amount":500,"state":"HELD","periodKey":"2026-11",` +
		`"expiresAt":"2026-11-24T10:05:00Z",` +
		`"limit":1000,"used":0,"held":500,"remaining":500,"resetAt":"2026-12-01T00:00:00Z","position":"17-4711"}`
	heldTwo = `{"data":[` + heldOne +
		`,{"reservationId":"b,1=x","feature":"bytes","amount":1800,"state":"HELD","periodKey":"lifetime","expiresAt":"2026-11-24T10:05:00Z",` +
		`"limit":null,"used":null,"held":null,"remaining":null,"resetAt":null,"position":"17-4712"}]}`
	releasedOne = `{"reservationId":"r-1","feature":"tokens","amount":500,"state":"RELEASED","released":500,"periodKey":"2026-11",` +
		`"position":"17-4713"}`
	committedOne = `{"reservationId":"r-1","feature":"tokens","state":"COMMITTED","eventId":"u-1","amount":412,"released":88,` +
		`"periodKey":"2026-11",` +
		`"limit":1000,"used":412,"held":0,"remaining":588,"resetAt":"2026-12-01T00:00:00Z","position":"17-4714"}`
)

func TestAnswersAboutQuotasArePrinted(t *testing.T) {
	const one = "/api/v1/entitlements/tokens/reservations"
	for _, c := range []struct{ args, answer, request, want string }{
		{"consume calls --amount 3 --event-id req-1 --metadata model=large", grantedOne,
			`POST /api/v1/entitlements/calls/consume {"eventId":"req-1","amount":3,"metadata":{"model":"large"}}`, "remaining  1007"},
		{"consume calls --event-id req-1 -o json", grantedOne, `POST /api/v1/entitlements/calls/consume {"eventId":"req-1","amount":1}`,
			`"position": "17-4711"`},
		{"consume --item calls=3,req-1 --item bytes=1800,r,1=b", grantedTwo,
			`POST /api/v1/entitlements/consume {"items":[{"feature":"calls","eventId":"req-1","amount":3},{"feature":"bytes","eventId":"r,1=b",` +
				`"amount":1800}]}`, "bytes    r1-b     1800    lifetime"},
		{"consume --item calls=3,req-1 --item bytes=1800,r1-b -o ndjson", grantedTwo,
			`POST /api/v1/entitlements/consume {"items":[{"feature":"calls","eventId":"req-1","amount":3},{"feature":"bytes","eventId":"r1-b",` +
				`"amount":1800}]}`, grantedOne + "\n"},
		{"reserve tokens --amount 500 --reservation-id r-1", heldOne, `POST ` + one + ` {"reservationId":"r-1","amount":500}`,
			"held           500\nremaining      500"},
		{"reserve tokens --reservation-id r-1 --ttl 5m -o json", heldOne,
			`POST ` + one + ` {"reservationId":"r-1","amount":1,"ttlSeconds":300}`, `"state": "HELD"`},
		{"reserve tokens --reservation-id r-1 --ttl 90", heldOne, `POST ` + one + ` {"reservationId":"r-1","amount":1,"ttlSeconds":90}`,
			"state          HELD"},
		{"reserve --item tokens=500,r-1 --item bytes=1800,b,1=x --ttl 90s", heldTwo,
			`POST /api/v1/entitlements/reservations {"items":[{"feature":"tokens","reservationId":"r-1","amount":500,"ttlSeconds":90},` +
				`{"feature":"bytes","reservationId":"b,1=x","amount":1800,"ttlSeconds":90}]}`, "bytes    b,1=x          1800    HELD"},
		{"reserve --item tokens=500,r-1 --item bytes=1800,b -o ndjson", heldTwo,
			`POST /api/v1/entitlements/reservations {"items":[{"feature":"tokens","reservationId":"r-1","amount":500},{"feature":"bytes",` +
				`"reservationId":"b","amount":1800}]}`, heldOne + "\n"},
		{"extend tokens r/1 --ttl 1h", heldOne, `POST ` + one + `/r%2F1/extend {"ttlSeconds":3600}`, "expiresAt      2026-11-24T10:05:00Z"},
		{"extend tokens r-1 --ttl 10 -o json", heldOne, `POST ` + one + `/r-1/extend {"ttlSeconds":10}`, `"state": "HELD"`},
		{"commit tokens r-1 --event-id u-1 --amount 412", committedOne, `POST ` + one + `/r-1/commit {"eventId":"u-1","amount":412}`,
			"released       88"},
		{"commit tokens r-1 --event-id u-1 --amount 412 --overage record -o json", committedOne,
			`POST ` + one + `/r-1/commit {"eventId":"u-1","amount":412,"overage":"record"}`, `"state": "COMMITTED"`},
		{"release tokens r/1", releasedOne, `DELETE ` + one + `/r%2F1 `, "state          RELEASED"},
		{"release tokens r-1 -o json", releasedOne, `DELETE ` + one + `/r-1 `, `"released": 500`},
	} {
		p := newAnsweringService(t, 200, c.answer)
		code, out, errs := newConsole(t, p).run(strings.Fields("entitlements " + c.args)...)
		if code != app.ExitYes || len(p.requests) != 1 || canonical(t, p.requests[0]) != canonical(t, c.request) ||
			!strings.Contains(out, c.want) || errs != "" {
			t.Errorf("%s: exit code %d\n%q\n%s%s", c.args, code, p.requests, out, errs)
		}
	}
}

// Without ids each request has ids of its own.
func TestConsumeReserveAndCommitMakeIDs(t *testing.T) {
	ids := map[string]bool{}
	for _, args := range []string{"consume calls", "consume calls", "consume --item calls=1 --item bytes=2", "reserve tokens",
		"reserve tokens", "reserve --item tokens=1 --item bytes=2",
		"commit tokens r-1 --amount 1"} {
		answer := heldTwo
		if strings.HasPrefix(args, "consume") {
			answer = grantedTwo
		} else if strings.HasPrefix(args, "reserve tokens") {
			answer = heldOne
		}
		p := newAnsweringService(t, 200, answer)
		if code, _, errs := newConsole(t, p).run(strings.Fields("entitlements " + args)...); code != app.ExitYes {
			t.Errorf("%s: exit code %d\n%s", args, code, errs)
		}
		for _, id := range regexp.MustCompile(`"(?:eventId|reservationId)":"(cli_[^"]{20,})"`).FindAllStringSubmatch(p.requests[0], -1) {
			ids[id[1]] = true
		}
	}
	if len(ids) != 9 {
		t.Errorf("%v", ids)
	}
}

// A repeated hold is answered with the reservation as it is. An ended reservation holds no amount: the answer is no.
func TestReserveOfAnEndedReservationIsNo(t *testing.T) {
	for args, answer := range map[string]string{
		"tokens --reservation-id r-1":                   releasedOne,
		"--item tokens=500,r-1 --item bytes=1800,b,1=x": strings.Replace(heldTwo, "HELD", "EXPIRED", 1),
	} {
		p := newAnsweringService(t, 200, answer)
		if code, out, errs := newConsole(t, p).run(strings.Fields("entitlements reserve " + args)...); code != app.ExitNo ||
			!strings.Contains(out, "r-1") || errs != "" {
			t.Errorf("%s: exit code %d\n%s%s", args, code, out, errs)
		}
	}
}

func TestRefusalsAboutQuotasSetTheExitCode(t *testing.T) {
	overLimit := `{"status":409,"code":"quota_exceeded","detail":"The limit of calls does not allow this amount",` +
		`"errors":[{"pointer":"/amount","code":"quota_exceeded","detail":"The limit of calls does not allow this amount"}],`
	exceeded := `{"status":409,"code":"quota_exceeded","detail":"The limit of tokens does not allow this amount","limit":1000,"used":0,` +
		`"held":500,"remaining":500,"resetAt":null}`
	for _, c := range []struct {
		args         string
		status, code int
		body, want   string
		unknown      bool // is the outcome
	}{
		{"consume calls --event-id req-1", 409, app.ExitNo,
			overLimit + `"limit":955,"used":953,"held":0,"remaining":2,"resetAt":"2026-12-01T00:00:00Z"}`,
			"remaining 2, limit 955, used 953, held 0, resetAt 2026-12-01T00:00:00Z\n  hint: Ask for less", false},
		{"consume calls --event-id req-1", 409, app.ExitNo, overLimit + `"limit":955,"used":953,"held":0,"remaining":0,"resetAt":null}`,
			"remaining 0, limit 955, used 953, held 0, resetAt never", false},
		{"consume calls --event-id req-1", 409, app.ExitNo, `{"code":"payload_conflict","detail":"other"}`,
			"payload_conflict: other\n  hint: Send the event under an eventId of its own", false},
		{"consume calls --event-id req-1", 409, app.ExitNo, `{"code":"no_active_subscription","detail":"none"}`,
			"hint: Create a subscription", false},
		{"consume calls --event-id req-1", 404, app.ExitNo, `{"code":"feature_not_found","detail":"none"}`,
			"hint: Name a feature of the subscription", false},
		{"consume calls --event-id req-1", 403, app.ExitUnknown, `{"code":"forbidden","detail":"lacks entitlements:reserve"}`,
			"forbidden: lacks entitlements:reserve", false},
		{"consume calls --event-id req-1", 400, app.ExitUnknown, `{"code":"amount_invalid","detail":"no"}`, "amount_invalid: no", false},
		{"consume calls --event-id req-1", 503, app.ExitUnknown, `{"code":"unavailable","detail":"later"}`,
			"The outcome is unknown. Send the request again with the same event ids, it counts once: req-1", true},
		{"reserve tokens --reservation-id r-1", 409, app.ExitNo, exceeded,
			"remaining 500, limit 1000, used 0, held 500, resetAt never\n  hint: Ask for less", false},
		{"reserve --item tokens=1,r-1", 409, app.ExitNo, exceeded, "quota_exceeded: The limit of tokens", false},
		{"reserve tokens --reservation-id r-1", 409, app.ExitNo, `{"code":"reservation_conflict","detail":"other"}`,
			"hint: Use a reservationId of its own", false},
		{"reserve tokens --ttl 100000", 400, app.ExitUnknown, `{"code":"ttl_seconds_invalid","detail":"too long"}`,
			"hint: Send an integer from 1 to 86400", false},
		{"reserve tokens --reservation-id r-1", 503, app.ExitUnknown, `{"code":"unavailable","detail":"later"}`,
			"Send the request again with the same reservation ids, each holds once: r-1", true},
		{"reserve --item tokens=1,r-1 --item bytes=2,r-2", 503, app.ExitUnknown, `{"code":"unavailable","detail":"later"}`,
			"each holds once: r-1 r-2", true},
		{"extend tokens r-1 --ttl 60", 409, app.ExitNo,
			`{"code":"reservation_ended","detail":"The reservation is EXPIRED","state":"EXPIRED"}`,
			"The reservation is EXPIRED\n  hint: The hold is over", false},
		{"commit tokens r-1 --event-id u-1 --amount 1", 409, app.ExitNo, `{"code":"amount_exceeds_hold","detail":"less"}`,
			"hint: Commit at most the held amount", false},
		{"commit tokens r-1 --event-id u-1 --amount 1", 503, app.ExitUnknown, `{"code":"unavailable","detail":"later"}`,
			"Send the request again with the same event ids, it counts once: u-1", true},
		{"release tokens r-1", 404, app.ExitNo, `{"code":"reservation_not_found","detail":"none"}`,
			"hint: Use the feature and the reservationId of the hold", false},
		{"reservations tokens r-1", 404, app.ExitNo, `{"code":"reservation_not_found","detail":"none"}`, "reservation_not_found: none",
			false},
	} {
		p := newAnsweringService(t, c.status, c.body)
		code, out, errs := newConsole(t, p).run(strings.Fields("entitlements --retry-for 1ms " + c.args)...)
		if code != c.code || out != "" || !strings.Contains(errs, c.want) || strings.Contains(errs, "is unknown") != c.unknown {
			t.Errorf("%s: %s: exit code %d\n%s%s", c.args, c.body, code, out, errs)
		}
	}
}

// A request without an answer is sent again as it was: with the same ids.
func TestReservationRequestsAreSentAgainUnchanged(t *testing.T) {
	for args, answer := range map[string]string{
		"reserve tokens --amount 5": heldOne, "reserve --item tokens=5": `{"data":[` + heldOne + `]}`,
		"extend tokens r-1 --ttl 60": heldOne, "commit tokens r-1 --amount 5": committedOne, "release tokens r-1": releasedOne,
	} {
		var sent []string
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if sent = append(sent, fmt.Sprint(r.Method, r.URL, string(body))); len(sent) == 1 {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, answer)
		}))
		code, out, errs := newConsole(t, &fakeService{url: s.URL}).run(strings.Fields("entitlements " + args)...)
		s.Close()
		if code != app.ExitYes || len(sent) != 2 || sent[0] != sent[1] || !strings.Contains(out, "r-1") ||
			!strings.Contains(errs, "trying again") {
			t.Errorf("%s: exit code %d\n%q\n%s%s", args, code, sent, out, errs)
		}
	}
}

func TestReservationsAreListedByPages(t *testing.T) {
	page := `{"data":[{"reservationId":"r-2","amount":5,"state":"HELD","eventId":null,"committed":null}],"nextCursor":"c1"}`
	p := newFakeService(t)
	p.catalog["/api/v1/entitlements/tokens/reservations"] = []byte(page)
	if code, out, errs := newConsole(t, p).run("entitlements", "reservations", "tokens", "--limit", "2", "-o",
		"csv"); code != app.ExitYes || len(p.requests) != 2 ||
		!strings.HasSuffix(p.requests[1], "/tokens/reservations?cursor=c1&limit=1 ") || strings.Count(out, "r-2") != 2 {
		t.Errorf("exit code %d\n%q\n%s%s", code, p.requests, out, errs)
	}
}

func TestCommandsAboutQuotasRefuseBadArguments(t *testing.T) {
	for args, want := range map[string]string{
		"consume": "give a feature, or --item", "consume calls --item calls=1": "not both", "consume --item calls=1 --amount 2": "not both",
		"consume --item calls=1 --event-id x": "not both",
		"consume --item calls":                "write feature=amount", "consume --item calls=1.5,x": "write feature=amount",
		"consume --item calls=,x": "write feature=amount", "consume calls --amount x": "expected",
		"reserve": "give a feature, or --item", "reserve tokens --item tokens=1": "not both",
		"reserve --item tokens=1 --amount 2":         "not both",
		"reserve --item tokens=1 --reservation-id x": "not both", "reserve --item tokens": "write feature=amount",
		"reserve tokens --ttl 0": "300 or 5m", "reserve tokens --ttl 1500ms": "300 or 5m", "reserve tokens --ttl=-60": "300 or 5m",
		"reserve tokens --ttl soon": "300 or 5m",
		"reserve tokens --ttl 0.4s": "300 or 5m", "reserve tokens --ttl 99999999999999999999": "300 or 5m",
		"extend tokens r-1": "--ttl", "extend tokens --ttl 60": "needs <reservation-id>", "commit tokens r-1 --event-id u": "--amount",
		"commit tokens --amount 1":                   "needs <reservation-id>",
		"commit tokens r-1 --amount 1 --overage all": "overage", "release tokens": "needs <reservation-id>",
		"reservations": "needs <feature>", "reservations tokens r-1 --state HELD": "not both",
	} {
		p := newAnsweringService(t, 200, heldOne)
		if code, _, errs := newConsole(t, p).run(strings.Fields("entitlements " + args)...); code != app.ExitUnknown ||
			len(p.requests) != 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %q\n%s", args, code, p.requests, errs)
		}
	}
	for _, args := range []string{"consume --item calls=1,a", "reserve --item tokens=1,a", "reserve tokens"} {
		p := newAnsweringService(t, 200, `{}`)
		if code, _, errs := newConsole(t, p).run(strings.Fields("entitlements " + args)...); code != app.ExitUnknown ||
			!strings.Contains(errs, "the answer does not") {
			t.Errorf("%s, answered {}: exit code %d\n%s", args, code, errs)
		}
	}
}
