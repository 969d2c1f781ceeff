package http_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/state"
)

var updateExamples = flag.Bool("update", false, "write the answers of the examples in http/examples")

// exampleTime is the timestamp of the examples' events; the test sends the present time instead.
const (
	exampleTime  = "2026-05-01T12:00:00Z"
	exampleMonth = "2026-05"
	exampleLast  = "2026-04" // the month before it, which is closed
)

// exampleID is the form of the ids of the examples.
const exampleID = "0196c0de-0000-7000-8000-%012d"

// exampleFixture is a service with one entity of each kind that the examples name.
type exampleFixture struct {
	*testService
	a   *account
	ids map[string]string // ids of the examples, to those of the service
	now string
	doc any // the OpenAPI document
}

func newExampleFixture(t *testing.T) *exampleFixture {
	f := &exampleFixture{testService: newTestService(t, withDoublingFold, withOverview), now: time.Now().UTC().Format(time.RFC3339)}
	f.catalogue()
	f.putPrice("calls", `"currency":"EUR","model":"per_unit","microUnits":500`)
	f.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil,
		`{"name":"Basic","entitlements":[{"feature":"api_calls","limit":1000,"limitBehavior":"HARD","resetPeriod":"MONTHLY","price":"calls"},` +
			`{"feature":"storage","limit":null,"resetPeriod":"NEVER"},{"feature":"sso"}]}`})
	f.a = f.newAccount("Acme")
	f.ingest(f.a, batch(event("order-1", map[string]any{"feature": "storage", "amount": 10})))
	f.ingest(f.a, batch(event("order-1", map[string]any{"feature": "storage", "amount": 11})))
	f.accept(f.a, old("april-1", 10), old("april-2", 5))
	f.rejections(f.a, "gone", 2)
	f.letter(f.a)
	f.fold()
	f.withhold(f.a, events.TopicUsageRaw, 1, 2)
	f.want(201, call{"PUT", "/api/v1/plans/starter", bootstrap, nil,
		`{"name":"Starter","entitlements":[{"feature":"api_calls","limit":50000}]}`})
	_, spare := f.key("", nil, "audit")
	replay := f.want(202, call{"POST", "/api/v1/replays/rewind", bootstrap, nil,
		`{"to":"start","reason":"the topic was restored"}`})["id"].(string)
	saga := f.saga(f.a.id, "2026-05/1")
	f.ids = map[string]string{}
	for i, id := range []string{f.a.id, f.a.subscription, f.a.keyID, spare, f.a.letterID, "", replay, f.firstOf(f.a), saga} {
		f.ids[fmt.Sprintf(exampleID, i+1)] = id
	}
	webhook, delivery := f.webhookOf(f.a)
	f.ids[fmt.Sprintf(exampleID, 14)], f.ids[fmt.Sprintf(exampleID, 15)] = webhook, delivery
	f.ids[fmt.Sprintf(exampleID, 17)] = f.thresholdOf(f.a)
	f.ids[fmt.Sprintf(exampleID, 16)] = f.newAccountlessTenant("Ending")
	f.published()
	f.asOwner(`INSERT INTO instances (id, version, roles, started_at, seen_at) VALUES ('host-4711-a1b2c3', 'test', '{api,relay}', now(),
		now())`)
	w := httptest.NewRecorder()
	handler, err := (&http.Server{}).Handler()
	f.must(err)
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	f.doc, err = jsonschema.UnmarshalJSON(w.Body)
	f.must(err)
	return f
}

// withOverview sets the state of the overview, and describes the instance.
func withOverview(s *http.Server) {
	s.Instance = api.ServiceInstance{ID: "host-4711-a1b2c3", Roles: []string{"api", "relay"}, Settings: []api.Setting{
		{Name: "METERPLEX_ROLES", Value: "api,relay", Origin: "environment"}, {Name: "KAFKA_SASL_PASSWORD", Value: "********",
			Origin: "file meterplex.env:3"}}}
	at := time.Now().UTC()
	read := &state.State{
		ReadAt: at,
		Outbox: state.Outbox{Totals: state.OutboxTotals{Unpublished: 12, OldestUnpublishedSeconds: 0.4},
			Partitions: []state.OutboxPartition{{Head: events.Position{Number: 48_210}}}},
		Lags: state.Lags{{Consumer: events.GroupAggregator, Behind: 40, Seconds: 0.2}, {Consumer: events.GroupValidator, Behind: 12,
			Seconds: 0.1}},
		DeadLetters: state.DeadLetters{Groups: []state.OpenLetters{{Status: "FAILED", Stage: "VALIDATION", Count: 5, Oldest: &at}}},
		Identity: &state.Comparison{Holds: true, Accepted: 24_105, Aggregated: 24_060, Rejected: 5, InFlight: 40,
			ComparedAt: at.Add(-12 * time.Second)},
	}
	s.Live.State = func() *state.State { return read }
}

// sent replaces the ids, the time and the month of the examples by those of the service.
func (f *exampleFixture) sent(text string) string {
	for example, actual := range f.ids {
		text = strings.ReplaceAll(text, example, actual)
	}
	last, _ := lastMonth()
	text = strings.ReplaceAll(text, exampleLast, last)
	return strings.ReplaceAll(strings.ReplaceAll(text, exampleTime, f.now), exampleMonth, f.now[:len(exampleMonth)])
}

// shown reverses the replacements of sent, and replaces secrets.
func (f *exampleFixture) shown(text string) string {
	for example, actual := range f.ids {
		if actual != "" {
			text = strings.ReplaceAll(text, actual, example)
		}
	}
	last, _ := lastMonth()
	text = strings.ReplaceAll(strings.ReplaceAll(text, f.now, exampleTime), f.now[:len(exampleMonth)], exampleMonth)
	text = strings.ReplaceAll(text, last, exampleLast)
	text = webhookSecretForm.ReplaceAllString(text, "whsec_"+strings.Repeat("A", 43)+"=")
	return secretForm.ReplaceAllString(text, "mp_${1}_0000000000000000000000000000000000000000000")
}

var (
	secretForm        = regexp.MustCompile(`mp_(live|test|op)_[A-Za-z0-9_-]{32,}`)
	webhookSecretForm = regexp.MustCompile(`whsec_[A-Za-z0-9+/=]{40,}`)
	unitsForm         = regexp.MustCompile(`("units":\[\{[^}]*\})[^\]]*\]`)
)

// Operations that are sent before and after the others, which are sent by name.
var (
	firstExamples = []string{"ingestUsage", "putPrice", "closePeriod", "getOutbox"}
	lastExamples  = []string{"consume", "consumeTogether", "reserve", "reserveTogether", "extendReservation", "commitReservation",
		"releaseReservation", "listReservations", "getReservation", "listAccounts", "reconcileAccounts",
		"discardDeadLetter", "retryDeadLetter", "promoteRebuild", "rollBackRebuild", "abandonRebuild", "reopenPeriod", "offboardTenant",
		"getOffboarding", "cancelOffboarding", "changeSubscription", "removeWebhook", "removeThreshold", "revokeKey", "revokeOperatorKey",
		"eraseTenant", "getErasure", "listErasures"}
)

// before prepares an operation.
func (f *exampleFixture) before(operation string) {
	switch operation {
	case "getOutbox": // a rebuild by another fold version: from now on the test folds no usage
		f.fold()
		f.runSagas()
		f.accept(f.a, correction("fix-1", "april-1", 7), retraction("undo-1", "april-2"))
		f.fold()
		ids := f.adjustmentsAt("/api/v1/adjustments?tenantId="+f.a.id, "id", "position")
		for i, n := range []int{10, 11} {
			id, position, _ := strings.Cut(ids[i], " ")
			f.ids[fmt.Sprintf(exampleID, n)], f.ids[fmt.Sprintf("17-%d", 9000+n)] = id, position
		}
		f.ids[fmt.Sprintf(exampleID, 12)], f.ids[fmt.Sprintf(exampleID, 13)] = f.push(f.a.id, 0, "FAILED"), f.push(f.a.id, 1, "UNKNOWN")
		f.ids[fmt.Sprintf(exampleID, 6)] = f.rebuilt("usage_aggregates", map[string]any{"reason": "new fold version"})
		f.published()
	case "eraseTenant":
		f.exec(`UPDATE tenants SET status = 'ARCHIVED' WHERE id = $1`, f.ids[fmt.Sprintf(exampleID, 16)])
	case "listRefusals":
		f.recordSeen() // of ingestUsage
	case "retryDeadLetter":
		f.must(f.pool.QueryRow(f.Context(), `SELECT id FROM dead_letter_events WHERE stage = 'VALIDATION' AND status = 'FAILED' AND id <> $1
			LIMIT 1`, f.a.letterID).Scan(&f.a.letterID))
		f.ids[fmt.Sprintf(exampleID, 5)] = f.a.letterID
	case "abandonRebuild":
		f.ids[fmt.Sprintf(exampleID, 6)] = f.rebuilt("entitlement_reads", map[string]any{"reason": "new fold version"})
	}
}

// TestEveryExampleIsSent: the examples of the OpenAPI document are requests that the service
// accepts, and their answers have the members of the service's. With -update it writes the answers.
func TestEveryExampleIsSent(t *testing.T) {
	f := newExampleFixture(t)
	operations := map[string]string{} // to METHOD path
	for path, item := range f.doc.(map[string]any)["paths"].(map[string]any) {
		for method, o := range item.(map[string]any) {
			operations[o.(map[string]any)["operationId"].(string)] = strings.ToUpper(method) + " " + path
		}
	}
	var order []string
	for name := range operations {
		if !slices.Contains(firstExamples, name) && !slices.Contains(lastExamples, name) {
			order = append(order, name)
		}
	}
	slices.Sort(order)
	routes := map[string]auth.Route{}
	for _, r := range http.Routes() {
		routes[r.Name()] = r
	}
	for _, name := range slices.Concat(firstExamples, order, lastExamples) {
		f.before(name)
		route, known := routes[operations[name]]
		e, err := api.ExampleOf(name)
		if err != nil || !known {
			t.Error(name, known, err)
			continue
		}
		e.Answer = f.example(name, route, e, api.MediaExample{Media: "application/json", Query: e.Query, Body: e.Body, Answer: e.Answer})
		for i := range e.More {
			e.More[i].Answer = f.example(name, route, e, e.More[i])
		}
		if *updateExamples {
			text, err := json.MarshalIndent(e, "", "  ")
			f.must(err)
			f.must(os.WriteFile("api/examples/"+name+".json", append(text, '\n'), 0o644))
		}
	}
}

// example sends one example, compares its answer with the service's, and returns the latter.
func (f *exampleFixture) example(name string, route auth.Route, e *api.Example, one api.MediaExample) json.RawMessage {
	f.Helper()
	c := call{method: route.Method, key: bootstrap, header: map[string]string{}}
	if route.Who == auth.Tenant || route.Who == auth.Either || route.Who == auth.AnyKey {
		c.key = f.a.key
	}
	c.path = parameter.ReplaceAllStringFunc(route.Path, func(p string) string {
		return url.PathEscape(f.sent(e.Path[strings.Trim(p, "{}")]))
	})
	query := url.Values{}
	for k, v := range one.Query {
		if query.Set(k, f.sent(v)); k == "tenantId" && route.Who != auth.Operator {
			c.key = bootstrap
		}
	}
	if c.path += "?" + query.Encode(); len(query) == 0 {
		c.path = strings.TrimSuffix(c.path, "?")
	}
	if one.Body != nil {
		c.body, c.header["Content-Type"] = f.sent(string(one.Body)), one.Media
		var items []json.RawMessage
		if json.Unmarshal(one.Body, &items) != nil {
			f.valid(name, "requestBody/content/"+escaped(one.Media)+"/schema", one.Body)
		}
		for _, item := range items {
			f.valid(name, "requestBody/content/"+escaped(one.Media)+"/x-item-schema", item)
		}
	}
	got := f.answerOf(c)
	media, _, _ := strings.Cut(got.header.Get("Content-Type"), ";")
	if got.status/100 != 2 {
		f.Errorf("%s: %s %s: %d %s", name, c.method, c.path, got.status, got.body)
		return one.Answer
	}
	if len(got.body) == 0 {
		return nil
	}
	actual := json.RawMessage(f.shown(string(got.body)))
	if !strings.HasSuffix(media, "json") || media == "application/x-ndjson" {
		first, _, _ := strings.Cut(string(actual), "\n{") // of NDJSON the first line
		actual, _ = json.Marshal(unitsForm.ReplaceAllString(strings.TrimSuffix(first, "\n"), "$1]") + "\n")
	} else {
		f.valid(name, fmt.Sprintf("responses/%d/content/%s/schema", got.status, escaped(media)), actual)
		actual = shortened(actual)
	}
	if *updateExamples {
		return actual
	}
	if one.Answer == nil {
		f.Errorf("%s: the example has no answer: run go test ./http -run TestEveryExampleIsSent -update", name)
		return nil
	}
	if strings.HasSuffix(media, "json") && media != "application/x-ndjson" {
		f.valid(name, fmt.Sprintf("responses/%d/content/%s/schema", got.status, escaped(media)), one.Answer)
	}
	if example, is := formOf(one.Answer), formOf(actual); example != is {
		f.Errorf("%s: the example's answer has the form\n%s\nand the service's\n%s", name, example, is)
	}
	return one.Answer
}

// answerOf returns an answer; of a stream of progress, which does not end, the first event.
func (f *exampleFixture) answerOf(c call) answer {
	f.Helper()
	if !strings.Contains(c.path, "/rebuilds/") || !strings.HasSuffix(c.path, "/events") {
		return f.do(c)
	}
	ctx, stop := context.WithCancel(f.Context())
	defer stop()
	r, err := newRequest(ctx, c, f.url)
	f.must(err)
	response, err := f.client.Do(r)
	f.must(err)
	defer response.Body.Close()
	var text strings.Builder
	for lines := bufio.NewScanner(response.Body); lines.Scan() && lines.Text() != ""; {
		text.WriteString(lines.Text() + "\n")
	}
	return answer{response.StatusCode, response.Header, []byte(text.String() + "\n")}
}

// valid checks a value against a schema of the document.
func (f *exampleFixture) valid(operation, schema string, value json.RawMessage) {
	f.Helper()
	compiler := jsonschema.NewCompiler()
	f.must(compiler.AddResource("mem:///openapi.json", f.doc))
	for path, item := range f.doc.(map[string]any)["paths"].(map[string]any) {
		for method, o := range item.(map[string]any) {
			if o.(map[string]any)["operationId"] != operation {
				continue
			}
			compiled, err := compiler.Compile("mem:///openapi.json#/paths/" + escaped(path) + "/" + method + "/" + schema)
			if err != nil {
				f.Errorf("%s: %v", operation, err)
				return
			}
			parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(string(value)))
			f.must(err)
			if err := compiled.Validate(parsed); err != nil {
				f.Errorf("%s: %v: %s", operation, err, value)
			}
		}
	}
}
