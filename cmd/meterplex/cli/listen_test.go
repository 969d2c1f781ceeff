package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	sending "github.com/meterplex/meterplex/infra/webhook"
	"github.com/meterplex/meterplex/internal/must"

	verifying "github.com/meterplex/meterplex/examples/webhooks"
)

// delivered is a request that a receiver got.
type delivered struct {
	header http.Header
	body   string
}

// receiver records requests in their order. Its first answer is 500.
func receiver(t *testing.T) (url string, got func() []delivered) {
	var mu sync.Mutex
	var list []delivered
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		must.OK(t, err)
		mu.Lock()
		defer mu.Unlock()
		if list = append(list, delivered{r.Header, string(body)}); len(list) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL + "/hook", func() []delivered {
		mu.Lock()
		defer mu.Unlock()
		return append([]delivered(nil), list...)
	}
}

var listenTenant = uuid.MustParse("01890000-0000-7000-8000-000000000002")

// loggedForListeners are events of the log, and the deliveries that the service makes of them.
func loggedForListeners(t *testing.T) (log []events.Envelope, want []webhook.Due) {
	at := time.Date(2026, 5, 1, 1, 2, 3, 4000, time.UTC)
	add := func(s events.Subject, payload, kind string) {
		n := len(log) + 1
		e := events.Envelope{EventID: uuid.MustParse(fmt.Sprintf("01890000-0000-7000-8000-0000000001%02d", n)), Subject: s,
			TenantID: listenTenant, Position: events.Position{Partition: 1, Number: int64(n)}, Epoch: 1,
			CorrelationID: uuid.MustParse("4bf92f35-77b3-4da6-a3ce-929d0e0e4736"), Actor: events.Actor{Type: "service", ID: "x"},
			OccurredAt: at, RecordedAt: at.Add(time.Second), DedupeKey: fmt.Sprint("k", n), Payload: json.RawMessage(payload),
			Vocabulary: events.CurrentVocabulary(), Residency: events.ResidencyUnspecified}
		if n%2 == 0 {
			e.CorrelationID = uuid.Nil
		}
		log = append(log, e)
		d := webhook.Due{Delivery: webhook.Delivery{EventID: e.EventID, TenantID: listenTenant, Type: kind, Position: &e.Position},
			Subject: s, Trace: e.CorrelationID, OccurredAt: e.OccurredAt, Payload: e.Payload}
		switch kind {
		case "":
		case webhook.UsageRefused:
			notices, err := webhook.RefusalNotices(listenTenant, e.Payload)
			must.OK(t, err)
			for d.EventID = range notices {
				want = append(want, d)
			}
		default:
			want = append(want, d)
		}
	}
	const refusals = `{"count":1,"from":"2026-05-01T01:02:03Z","groups":[{"code":"c","feature":"f","count":1}],"samples":[{"code":"c",` +
		`"feature":"f","payload":"private"}]}`
	add(events.UsageRecorded, `{"amount":1}`, "")
	add(events.PeriodClosed, `{ "snapshot" : 1, "periodKey": "2026-05" }`, webhook.PeriodClosed)
	add(events.UsageValidated, `{"eventId":"in time"}`, "")
	add(events.UsageValidated, `{"eventId":"a<b","late":{"snapshot":1,"kind":"LATE_USAGE"}}`, webhook.AdjustmentPending)
	add(events.AdjustmentProposed, `{"kind":"REBUILD","flip":1}`, webhook.AdjustmentPending)
	add(events.ThresholdCrossed, `{"feature":"f","limit":null,"before":"1","after":"90071992547409931"}`, webhook.ThresholdCrossed)
	add(events.ReservationExpired, `{"pad":"`+strings.Repeat("x", 20_000)+`"}`, webhook.ReservationExpired)
	add(events.PushFailed, `{"reason":"in the words of the provider"}`, webhook.PushFailed)
	add(events.RefusalsSeen, refusals, webhook.UsageRefused)
	add(events.RefusalsSeen, strings.Replace(refusals, "03Z", "04Z", 1), "") // the same minute
	add(events.TenantChanged, `{"reason":"r","name":"n"}`, "")
	return log, want
}

// streamOf serves a log as an operator or its tenant reads it. It ends and breaks off streams, the first one before an event.
func streamOf(t *testing.T, log []events.Envelope, wire func([]byte, *events.Envelope) ([]byte, error)) (url string) {
	var requests atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "retry: 1000\n\n")
		if r.URL.Query().Get("follow") == "false" {
			fmt.Fprint(w, ": end\nid: 1-0\n\n")
			return
		}
		asked, after := int(requests.Add(1)), 0
		if _, err := fmt.Sscanf(r.Header.Get("Last-Event-ID"), "1-%d", &after); err != nil {
			t.Errorf("the place is %q", r.Header.Get("Last-Event-ID"))
		}
		for i := after; i < len(log) && i < after+2*asked-2; i++ {
			line, err := wire(nil, &log[i])
			must.OK(t, err)
			text := fmt.Sprintf("id: 1-%d\ndata: %s\n\n", i+1, line)
			if asked%2 == 0 && i == after+1 {
				fmt.Fprint(w, text[:len(text)/2])
				panic(http.ErrAbortHandler)
			}
			fmt.Fprint(w, text)
		}
		if after == len(log) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A listener sends each event of a webhook once, with the request that the service sends, although its stream breaks off.
func TestListenersSendWhatTheServiceSends(t *testing.T) {
	log, want := loggedForListeners(t)
	for name, wire := range map[string]func([]byte, *events.Envelope) ([]byte, error){"an operator": codec.AppendWire,
		"the tenant": codec.AppendTenantWire} {
		to, got := receiver(t)
		c := newConsole(t, &fakeService{url: streamOf(t, log, wire)})
		out, ended := &lockedBuffer{}, make(chan int)
		c.app.Stdout = out
		go func() { ended <- c.app.run([]string{"webhooks", "listen", "--forward-to", to, "-o", "ndjson"}) }()
		for end := time.Now().Add(20 * time.Second); len(got()) < len(want) && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		}
		time.Sleep(50 * time.Millisecond) // one more would be wrong
		c.cancel()
		code, list := <-ended, got()
		_, secret, _ := strings.Cut(c.err.String(), "The signing secret is ")
		secret, _, _ = strings.Cut(secret, "\n")
		if code != app.ExitYes || len(list) != len(want) || !strings.Contains(out.String(), `"status":500`) ||
			strings.Count(out.String(), `"status":200`) != len(want)-1 {
			t.Fatalf("%s: exit code %d, %d of %d deliveries\n%s%s", name, code, len(list), len(want), out.String(), c.err.String())
		}
		services, service := receiver(t)
		sender := sending.NewSender(sending.Config{Addresses: everywhere()})
		for i := range want {
			d := &want[i]
			d.URL, d.Operators, d.Secrets = services, true, []string{secret}
			m, err := d.Message(time.Now())
			must.OK(t, err)
			sender.Send(context.Background(), m)
		}
		sender.Close()
		for i, w := range service() {
			g := list[i]
			if !verifying.Verify(secret, g.header, []byte(g.body), time.Now()) {
				t.Errorf("%s: the signature of %d is wrong: %v", name, i, g.header)
			}
			for _, h := range []http.Header{w.header, g.header} { // of the moment
				h.Del("webhook-timestamp")
				h.Del("webhook-signature")
			}
			if g.body != w.body || fmt.Sprint(g.header) != fmt.Sprint(w.header) {
				t.Errorf("%s: the listener sends\n%v\n%.300s\nand the service\n%v\n%.300s", name, g.header, g.body, w.header, w.body)
			}
		}
	}
}

// everywhere permits the receivers of tests.
func everywhere() webhook.Addresses {
	return webhook.Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

// A listener sends the types that it is given, and reports a receiver that does not run.
func TestListenersSendTheTypesThatTheyAreGiven(t *testing.T) {
	log, _ := loggedForListeners(t)
	c := newConsole(t, &fakeService{url: streamOf(t, log, codec.AppendWire)})
	out, ended := &lockedBuffer{}, make(chan int)
	c.app.Stdout = out
	go func() {
		ended <- c.app.run([]string{"webhooks", "listen", "--forward-to", "http://127.0.0.1:1", "--event", "push.failed,period.closed"})
	}()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(out.String(), "push.failed ") && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	c.cancel()
	code := <-ended
	if text := out.String(); code != app.ExitYes || strings.Count(text, "\n") != 2 ||
		strings.Count(text, "the connection was refused") != 2 || !strings.Contains(text, "period.closed       1-2 ") {
		t.Errorf("exit code %d\n%s%s", code, text, c.err.String())
	}
	for args, want := range map[string]string{"--forward-to localhost:3000": "write a URL, e.g. http://localhost:3000/hook",
		"--forward-to http://localhost:3000 --event x": "--event: must be among period.closed", "": "--forward-to"} {
		if code, _, errs := newConsole(t, nil).run(strings.Fields("webhooks listen " + args)...); code != app.ExitUnknown ||
			!strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d\n%s", args, code, errs)
		}
	}
}
