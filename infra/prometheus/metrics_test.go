package prometheus

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/state"
)

// A rule on the rate of an event that never happened must find a zero.
func TestSeriesExistBeforeTheFirstEvent(t *testing.T) {
	registry := prom.NewRegistry()
	New(registry, unread, nil)
	for name, want := range map[string][]string{
		"events_published_total": {"usage.raw ", "usage.validated ", "meterplex.billing "},
		"events_consumed_total": {"meterplex-usage-aggregator error usage.validated ",
			"meterplex-dead-letter-handler noop usage.dead-letter ",
			"meterplex-entitlement-reads ok log ", "meterplex-usage-series ok log ", "meterplex-usage-commands ok usage.commands ",
			"meterplex-usage-commands noop usage.commands ", "meterplex-usage-commands error usage.commands "},
		"events_dlq_total": {"INGESTION usage.raw ", "INGESTION usage.commands ", "PUBLISHING usage.validated ", "VALIDATION usage.raw ",
			"AGGREGATION usage.validated "},
		"events_withheld_total":             {"usage.raw "},
		"event_processing_duration_seconds": {"meterplex-usage-validator ", "meterplex-usage-commands "},
		"end_to_end_seconds":                {"meterplex-usage-aggregator "},
		"inbox_dedup_skips_total":           {"meterplex-command-handler ", "meterplex-usage-commands "},
		"publish_refused_total":             {"broker usage.raw ", "registry meterplex.billing "},
		"log_holes_total":                   {""},
		"log_head":                          {""},
		"dead_letters":                      {"VALIDATION FAILED ", "AGGREGATION RETRYING "},
		"projection_lag_seconds":            {"usage_aggregates ", "entitlement_reads ", "meterplex-usage-validator "},
		"consumer_lag":                      {"0 usage.raw ", "31 usage.commands "},
		"saga_open":                         {"DRIFT ", "PARTIAL "},
	} {
		got := series(t, registry, "meterplex_"+name)
		for _, labels := range want {
			if n, there := got[labels]; !there || n != 0 {
				t.Errorf("%s has no %q at 0: %v", name, labels, got)
			}
		}
	}
	var published int
	for _, topic := range events.Topics() {
		if !topic.Topic.Outside() {
			published++
		}
	}
	if got := series(t, registry, "meterplex_events_published_total"); len(got) != published {
		t.Errorf("topics written by others must not be counted as published: %v", got)
	}
}

// An instance that relays no partition reports the backlog, too. A rewind does not raise it: its events were published before.
func TestTheBacklogIsExportedByEveryInstance(t *testing.T) {
	pool := migrated(t)
	for _, sql := range []string{
		`UPDATE log_heads SET position = 10 WHERE partition IN (3, 4, 5)`,
		`UPDATE relay_cursors SET position = 4 WHERE partition = 3`,
		`UPDATE relay_cursors SET position = 1, furthest = 8 WHERE partition = 4`,
		`UPDATE relay_cursors SET position = 0, furthest = 10 WHERE partition = 5`,
		`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin, partition,
			topic, subject, dedupe_key, body)
		 SELECT n, 0, now() - CASE WHEN n <= CASE p WHEN 3 THEN 4 WHEN 4 THEN 8 ELSE 10 END THEN interval '1 hour'
		 ELSE interval '1 min' END, now(), gen_random_uuid(), gen_random_uuid(), 0, 1, p, 1, 1, n::text, '{}'
		 FROM generate_series(1, 10) n, generate_series(3, 5) p`,
	} {
		must.Exec(t, pool, sql)
	}
	registry := watched(t, pool, func(r *reader) bool { return r.State().Outbox.Totals.Unpublished != 0 })
	waits, oldest := series(t, registry, "meterplex_outbox_unpublished_count")[""],
		series(t, registry, "meterplex_outbox_oldest_unpublished_seconds")[""]
	if waits != 6+2 || oldest < 59 || oldest > 600 {
		t.Errorf("%v events wait, the oldest for %v s", waits, oldest)
	}
}

// The figure of usage is readable when its verdict is folded: the time counts from the request, not from the verdict.
func TestEndToEndBeginsWithTheRequest(t *testing.T) {
	registry := prom.NewRegistry()
	m := New(registry, unread, nil)
	recorded := time.Now()
	begun := uuid.Must(uuid.NewV7())
	for _, e := range []events.Envelope{{Subject: events.UsageValidated, CausationID: begun, RecordedAt: recorded.Add(time.Minute)},
		{Subject: events.UsageRecorded, CausationID: begun, RecordedAt: recorded.Add(3 * time.Second)},
		{Subject: events.UsageValidated, RecordedAt: recorded.Add(3 * time.Second)}} {
		if took := recorded.Add(5 * time.Second).Sub(begunAt(&e)); (e.Subject == events.UsageValidated &&
			e.CausationID == begun) != (took > 4*time.Second) {
			t.Errorf("%v after %v", took, e.Subject)
		}
	}
	m.Observe(&projections.Consumer{Name: events.GroupAggregator, Topic: events.TopicUsageValidated},
		projections.Batch{End: recorded.Add(1990 * time.Millisecond),
			Applied: []events.Envelope{{Subject: events.UsageValidated, CausationID: begun}}})
	families, err := registry.Gather()
	must.OK(t, err)
	for _, f := range families {
		if f.GetName() != "meterplex_end_to_end_seconds" {
			continue
		}
		for _, metric := range f.GetMetric() {
			for _, b := range metric.GetHistogram().GetBucket() {
				if metric.GetLabel()[0].GetValue() == events.GroupAggregator &&
					(b.GetCumulativeCount() == 1) != (b.GetUpperBound() >= readableWithin) {
					t.Errorf("bucket %v holds %d", b.GetUpperBound(), b.GetCumulativeCount())
				}
			}
		}
	}
}

func TestMessagesWithUsageAreMeasured(t *testing.T) {
	registry := prom.NewRegistry()
	var w state.Watch
	m := New(registry, w.State, nil)
	if got := series(t, registry, "meterplex_consumer_lag"); got["17 usage.commands "] != 0 || got["31 usage.raw "] != 0 {
		t.Errorf("at the start the lag is %v", got)
	}
	m.UsageDecided(5, 2)
	m.UsageMessages(time.Second, nil)
	m.UsageMessages(time.Second, errors.New("the database does not answer"))
	ctx, stop := context.WithCancel(t.Context())
	must.OK(t, w.CountMessages(ctx, func(context.Context) (map[int16]int64, error) { stop(); return map[int16]int64{17: 4}, nil }))
	must.OK(t, w.CountMessages(ctx, func(context.Context) (map[int16]int64, error) { return nil, errors.New("no broker") }))
	for name, want := range map[string]map[string]float64{
		"events_consumed_total": {"meterplex-usage-commands ok usage.commands ": 3, "meterplex-usage-commands noop usage.commands ": 2,
			"meterplex-usage-commands error usage.commands ": 1},
		"inbox_dedup_skips_total": {"meterplex-usage-commands ": 2},
		"consumer_lag":            {"17 usage.commands ": 4, "3 usage.commands ": 0},
	} {
		got := series(t, registry, "meterplex_"+name)
		for labels, n := range want {
			if v, there := got[labels]; !there || v != n {
				t.Errorf("%s: %v, want %s%v", name, got, labels, n)
			}
		}
	}
}
