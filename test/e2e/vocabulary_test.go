package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/tier"
)

// withNextVocabulary gives the faulty binary one more member in some schemas and a changed
// retention class, as in a later release.
const withNextVocabulary = "METERPLEX_FAULT_VOCABULARY=next"

func nextVocabulary() []edit {
	const schema, subject = "events/schema.go", "events/subject.go"
	const path, read = `"schemas/" + info.Name() + ".json"`, "\ttext, err := schemaFiles.ReadFile(path)\n"
	const class = `{UsageConflicted, "meterplex.usage.event.conflicted", 1, TopicUsageDeadLetter, `
	const imported = "\t\"github.com/meterplex/meterplex/events/fault\"\n"
	return []edit{
		{File: "events/fault/schema.go", New: nextSchemas},
		{File: schema, Old: "import (\n", New: "import (\n" + imported},
		{File: schema, Old: "\treturn schemaFiles.ReadFile(" + path + ")\n", New: "\treturn fault.Schema(schemaFiles.ReadFile, " + path +
			")\n"},
		{File: schema, Old: read, New: strings.Replace(read, "schemaFiles.ReadFile(", "fault.Schema(schemaFiles.ReadFile, ", 1)},
		{File: subject, Old: "import (\n", New: "import (\n" + imported},
		{File: subject, Old: class + `"cold"`, New: class + `fault.Of("METERPLEX_FAULT_VOCABULARY", "cold", "warm")`},
	}
}

const nextSchemas = `package fault

import (
	"os"
	"strings"
)

// Schema reads a schema; the next vocabulary has one more member in some.
func Schema(read func(path string) ([]byte, error), path string) ([]byte, error) {
	text, err := read(path)
	if err != nil || os.Getenv("METERPLEX_FAULT_VOCABULARY") == "" {
		return text, err
	}
	for _, subject := range []string{"usage.event.recorded", "usage.event.validated", "usage.event.rejected", "catalogue.tenant.created",
	"catalogue.api_key.created"} {
		if path == "schemas/meterplex." + subject + ".v1.json" {
			before, after, found := strings.Cut(string(text), "\"properties\": {") // of the payload: members come later
			if !found {
				panic(path + " has no place for a member")
			}
			return []byte(before + "\"properties\": { \"note\": {\"type\": \"string\"}," + after), nil
		}
	}
	return text, nil
}
`

// publication returns the partition, key, headers and value of each record on the topics,
// by topic and position. Repetitions must be equal.
func publication(w *deployment) map[topicPosition]string {
	w.t.Helper()
	all := map[topicPosition]string{}
	eachRecord(w, func(r *kgo.Record) {
		var at string
		text := fmt.Sprintf("partition %d key %q", r.Partition, r.Key)
		for _, h := range r.Headers {
			text += fmt.Sprintf(" %s=%q", h.Key, h.Value)
			if h.Key == "mp-position" {
				at = string(h.Value)
			}
		}
		p := topicPosition{strings.TrimPrefix(r.Topic, w.prefix), at}
		text += "\n" + string(r.Value)
		if before, ok := all[p]; ok && before != text {
			w.t.Errorf("%s is on %s twice:\n%s\n%s", p.position, p.topic, before, text)
		}
		all[p] = text
	})
	return all
}

// publishAgain empties Kafka and publishes the whole log again.
func publishAgain(w *deployment, by *instance) map[topicPosition]string {
	w.t.Helper()
	w.drain()
	old := awaitTopics(w)
	c := w.kafka()
	defer c.Close()
	if _, err := kadm.NewClient(c).DeleteTopics(w.t.Context(), topicNames(w)...); err != nil {
		w.t.Fatal(err)
	}
	awaitRecreated(w, old)
	if done := w.cli(by, w.operator).replay("rewind", "--since", "168h"); len(done.Partitions) == 0 {
		w.t.Error("the relay was rewound in no partition")
	}
	w.drain()
	return publication(w)
}

// checkSameRecords compares each record of a publication with the same record of a later one.
func checkSameRecords(w *deployment, what string, first, again map[topicPosition]string) {
	w.t.Helper()
	var differ []string
	for p, text := range first {
		switch other, ok := again[p]; {
		case !ok:
			w.t.Errorf("%s: %s of %s is missing", what, p.position, p.topic)
		case other != text:
			differ = append(differ, fmt.Sprintf("%s of %s\nwas %s\nis  %s", p.position, p.topic, text, other))
		}
	}
	if len(differ) > 0 {
		slices.Sort(differ)
		w.t.Errorf("%s: %d of %d records changed, the first is %s", what, len(differ), len(first), differ[0])
	}
	w.t.Logf("%s: %d records compared", what, len(first))
}

// countContaining counts the records that contain a text.
func countContaining(records map[topicPosition]string, text string) (n int) {
	for _, r := range records {
		if strings.Contains(r, text) {
			n++
		}
	}
	return n
}

// A release that changes schemas and classes publishes older events byte for byte as the
// release before it did. The older release does the same with events of the newer one,
// whose vocabulary it reads from the database.
func TestP2_EveryReleasePublishesTheSameBytes(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	if _, err := faulty(); err != nil {
		t.Fatal(err)
	}
	w := newDeployment(t)
	region := "METERPLEX_REGION=eu-central-1"
	now := w.serve("", region)
	w.catalogue(now)
	tenants := w.createTenants(now, 3)
	sendMixedUsage(w, now, tenants)
	w.ask(w.operator, http.MethodPatch, now, "/api/v1/tenants/"+tenants[1].id, object{"dataResidency": "us-east-1"}, nil, http.StatusOK)
	sendMixedUsage(w, now, tenants)
	w.drain()
	now.stop()
	first := publication(w)
	checkResidencies(w, first, tenants)

	next := w.prepare("", region, withNextVocabulary)
	next.build = faulty
	next.start()
	again := publishAgain(w, next)
	checkSameRecords(w, "published by the next release", first, again)

	more := w.createTenants(next, 1)
	sendMixedUsage(w, next, append(more, tenants...))
	again = publishAgain(w, next)
	checkSameRecords(w, "published by the next release beside its own", first, again)
	if len(again) <= len(first) {
		t.Errorf("%d records, want more than %d", len(again), len(first))
	}
	next.stop()
	if n := w.count(`SELECT count(DISTINCT vocabulary) FROM log_origins`); n != 2 {
		t.Errorf("the log names %d vocabularies, want 2", n)
	}

	now.start()
	back := publishAgain(w, now)
	checkSameRecords(w, "published by the release before", again, back)
	readOverHTTP(w, now, back)
	w.finish()
}

// sendMixedUsage sends usage with duplicates, conflicts and rejections.
func sendMixedUsage(w *deployment, at *instance, tenants []*tenant) {
	w.t.Helper()
	awaitKeys(w, at, tenants)
	l := w.startLoad(tenants, 1, mix{duplicates: 20, conflicts: 10, rejections: 10, batch: 6, pause: 10 * time.Millisecond},
		func(int) string { return at.url() })
	l.awaitMore(60)
	l.stop()
	w.settle(at, tenants...)
}

// checkResidencies checks that events keep the residency in force when they were recorded.
func checkResidencies(w *deployment, records map[topicPosition]string, tenants []*tenant) {
	w.t.Helper()
	moved := map[topicPosition]string{}
	for p, r := range records {
		if strings.Contains(r, `"tenantId":"`+tenants[1].id) {
			moved[p] = r
		} else if !strings.Contains(r, `"dataResidency":"eu-central-1"`) {
			w.t.Errorf("%s of %s: %s", p.position, p.topic, r)
		}
	}
	before, after := countContaining(moved, `"dataResidency":"eu-central-1","orderingKey"`),
		countContaining(moved, `"dataResidency":"us-east-1","orderingKey"`)
	if before == 0 || after == 0 || before+after != len(moved) {
		w.t.Errorf("of %d records of a tenant that moved, %d are of eu-central-1 and %d of us-east-1", len(moved), before, after)
	}
	if n := countContaining(moved, `"eventType":"meterplex.catalogue.tenant.changed"`); n != 1 {
		w.t.Errorf("%d events record the move, want 1", n)
	}
}

// readOverHTTP compares GET /events with the records on the topics.
func readOverHTTP(w *deployment, at *instance, records map[topicPosition]string) {
	w.t.Helper()
	read := map[string]bool{}
	for cursor := ""; ; {
		var page struct {
			Data       []json.RawMessage
			NextCursor string
		}
		w.ask(w.operator, http.MethodGet, at, "/api/v1/events?limit=1000"+cursor, nil, &page, http.StatusOK)
		for _, e := range page.Data {
			read[string(e)] = true
		}
		if page.NextCursor == "" {
			break
		}
		cursor = "&cursor=" + page.NextCursor
	}
	for _, p := range slices.SortedFunc(maps.Keys(records), func(a, b topicPosition) int {
		return strings.Compare(a.position, b.position)
	}) {
		if _, value, _ := strings.Cut(records[p], "\n"); !read[value] {
			w.t.Fatalf("GET /events does not return %s of %s as published:\n%s", p.position, p.topic, value)
		}
	}
}
