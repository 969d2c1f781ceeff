package observe

import (
	"fmt"
	"strconv"
	"strings"
)

// The numbers of this file are those of the requirements, not those of the table.

// scenario is the input of a rule and the times at which its alert fires.
type scenario struct {
	series []string // "selector values"
	checks []check
}

// check is a time in steps of the case, and the labels of the alerts that fire then.
type check struct {
	at    int
	fires []string
}

// ruleCase is a test of one alert.
type ruleCase struct {
	alert     string
	severity  string
	step      int // minutes
	scenarios []scenario
}

// job is the label of every series.
const job = `job="meterplex"`

// phases are the values of a series: quiet, then firing, then quiet. The first step that fires is begin.
func phases(quiet, fires float64, length int) string {
	q, f := strconv.FormatFloat(quiet, 'g', -1, 64), strconv.FormatFloat(fires, 'g', -1, 64)
	return fmt.Sprintf("%sx%d %sx%d %sx20", q, begin-1, f, length+9, q)
}

const begin = 10

// gauge is the case of a threshold on a gauge that fires after minutes. Another instance reports a value that does not fire. Each
// metric is a selector without the job; decoys are further series.
func gauge(alert, severity, metric, labels string, quiet, fires float64, minutes int, decoys ...string) ruleCase {
	s := scenario{series: append([]string{
		with(metric, `instance="a"`) + " " + phases(quiet, fires, minutes), with(metric, `instance="b"`) + " " + phases(quiet, quiet,
			minutes)}, decoys...)}
	s.fires(minutes, labels)
	return ruleCase{alert, severity, 1, []scenario{s}}
}

// fires appends the checks of an alert with a delay.
func (s *scenario) fires(minutes int, labels string) {
	s.checks = append(s.checks, check{begin - 1, nil})
	if minutes > 0 {
		s.checks = append(s.checks, check{begin + minutes - 1, nil})
	}
	s.checks = append(s.checks, check{begin + minutes, []string{labels}}, check{begin + minutes + 9, []string{labels}},
		check{begin + minutes + 10, nil})
}

// with adds the job and further labels to a selector.
func with(metric string, labels ...string) string {
	name, own, found := strings.Cut(strings.TrimSuffix(metric, "}"), "{")
	all := append([]string{job}, labels...)
	if found {
		all = append(all, own)
	}
	return name + "{" + strings.Join(all, ",") + "}"
}

// counter is the case of an alert that fires for minutes after a counter has grown, on an instance that runs and on one that began.
func counter(alert, severity, metric, labels string, minutes int) ruleCase {
	on := []string{labels}
	later, long := 40+minutes, 4*minutes+100
	// Instance a grows at step 20, b begins later with 1, c begins after that without growth.
	return ruleCase{alert, severity, 1, []scenario{{series: []string{
		with(metric, `instance="a"`) + fmt.Sprintf(" 0x19 1x%d", long), with(metric, `instance="b"`) + fmt.Sprintf(" _x%d 1x%d", later,
			long),
		with(metric, `instance="c"`) + fmt.Sprintf(" _x%d 0x%d", later+minutes+20, long)},
		checks: []check{{19, nil}, {20, on}, {20 + minutes - 2, on}, {20 + minutes, nil},
			{later - 1, nil}, {later, on}, {later + minutes - 1, on}, {later + minutes, nil}, {later + minutes + 25, nil}}}}}
}

// rate is the case of an alert on the growth of a counter in a minute, over 5 minutes and for 5 minutes.
func rate(alert, metric, severity, labels string, quiet, fires float64, decoys ...string) ruleCase {
	below := scenario{series: append([]string{with(metric, `instance="a"`) + fmt.Sprintf(" 0+%vx60", quiet)}, decoys...),
		checks: []check{{30, nil}, {60, nil}}}
	// The rate of 5 minutes passes the threshold when the growth is in them as a whole.
	above := scenario{series: append([]string{with(metric, `instance="a"`) + fmt.Sprintf(" 0x9 0+%vx40 %vx60", fires, 40*fires)},
		decoys...),
		checks: []check{{10 + 5 + 5 - 2, nil}, {10 + 5 + 5, []string{labels}}, {50, []string{labels}}, {57, nil}}}
	return ruleCase{alert, severity, 1, []scenario{below, above}}
}

// cases lists the tests of all alerts. A selector of another state or stage is a decoy: a rule without its matcher fails.
func cases() []ruleCase {
	decoy := func(metric string, value float64) string {
		return with(metric, `instance="a"`) + fmt.Sprintf(" %vx3000", value)
	}
	all := []ruleCase{
		gauge("MeterplexIdentityBroken", "page", "meterplex_identity_holds", "", 1, 0, 0),
		gauge("MeterplexIdentityNotCompared", "ticket", "meterplex_identity_age_seconds", "", 3600, 3601, 0).allInstances(),
		counter("MeterplexLogHole", "page", "meterplex_log_holes_total", "", 15),
		gauge("MeterplexProjectionDrift", "page", `meterplex_projection_drift_rows{projection="usage_aggregates"}`,
			`projection="usage_aggregates"`, 0, 1, 0),
		gauge("MeterplexQuotaDrift", "page", "meterplex_quota_drift", "", 0, 1, 0),
		gauge("MeterplexPeriodDrift", "page", `meterplex_saga_open{state="DRIFT"}`, "", 0, 1, 0,
			decoy(`meterplex_saga_open{state="PARTIAL"}`, 9)),
		counter("MeterplexPayloadConflicts", "ticket", "meterplex_payload_conflicts_total", "", 15),

		gauge("MeterplexOutboxStalled", "page", "meterplex_outbox_oldest_unpublished_seconds", "", 60, 60.5, 4),
		gauge("MeterplexPartitionWithoutLease", "page", "meterplex_relay_leases", "", 16, 15, 1),
		counter("MeterplexRecordsWithheld", "ticket", `meterplex_events_withheld_total{topic="usage.raw"}`, `topic="usage.raw"`, 15),
		counter("MeterplexPublishRefused", "ticket", `meterplex_publish_refused_total{topic="usage.raw",by="broker"}`,
			`topic="usage.raw",by="broker"`, 15),

		gauge("MeterplexProjectionLag", "page", `meterplex_projection_lag_seconds{projection="usage_series"}`, `projection="usage_series"`,
			5, 5.05, 5),
		gauge("MeterplexProjectionBacklog", "ticket", `meterplex_projection_lag_events{projection="usage_series"}`,
			`projection="usage_series"`, 500, 501, 5,
			decoy(`meterplex_projection_lag_seconds{projection="usage_series"}`, 5.05)),
		gauge("MeterplexProjectionBacklog", "ticket", `meterplex_projection_lag_seconds{projection="usage_series"}`,
			`projection="usage_series"`, 5, 5.05, 5,
			decoy(`meterplex_projection_lag_events{projection="usage_series"}`, 501)),
		rate("MeterplexDeadLetters", `meterplex_events_dlq_total{stage="AGGREGATION",topic="t"}`, "page", "", 1, 1.01,
			with(`meterplex_events_dlq_total{stage="VALIDATION",topic="t"}`)+" 0+50x300"),
		rate("MeterplexDeadLetters", `meterplex_events_dlq_total{stage="PUBLISHING",topic="t"}`, "page", "", 1, 1.01,
			with(`meterplex_events_dlq_total{stage="INGESTION",topic="t"}`)+" 0+50x300"),
		usageRefused(),
		gauge("MeterplexFailedDeadLetters", "ticket", `meterplex_dead_letters{status="FAILED",stage="VALIDATION"}`, "", 4, 5, 5,
			decoy(`meterplex_dead_letters{status="FAILED",stage="AGGREGATION"}`, 6),
			decoy(`meterplex_dead_letters{status="RETRYING",stage="VALIDATION"}`, 99),
			decoy(`meterplex_dead_letters{status="FAILED",stage="INGESTION"}`, 99)),
		consumerErrors(),

		gauge("MeterplexStateNotRead", "page", "meterplex_state_age_seconds", "", 60, 61, 1).allInstances(),
		gauge("MeterplexInstanceStateNotRead", "ticket", "meterplex_state_age_seconds", `instance="a"`, 300, 301, 5),
		gauge("MeterplexStandbyMissing", "page", "meterplex_synchronous_standbys_missing", "", 0, 1, 1),
		gauge("MeterplexArchiveOld", "page", "meterplex_wal_archived_seconds", "", 300, 301, 0),
		gauge("MeterplexWALRetained", "page", "meterplex_wal_bytes", "", 4000, 4001, 0, decoy("meterplex_wal_limit_bytes", 5000),
			with("meterplex_wal_limit_bytes", `instance="b"`)+" 1000x300"),
		gauge("MeterplexDatabaseNotMonitored", "ticket", "meterplex_database_monitored", "", 1, 0, 15).allInstances(),
		disk(), diskNotWatched(),

		gauge("MeterplexBillingDifference", "ticket", "meterplex_billing_difference", "", 0, 1, 12).steps(10),
		gauge("MeterplexPushFailed", "ticket", `meterplex_billing_pushes_open{state="FAILED"}`, "", 0, 1, 0,
			decoy(`meterplex_billing_pushes_open{state="PENDING"}`, 9)),
		counter("MeterplexBillingKeyRefused", "ticket", `meterplex_billing_push_attempts_total{outcome="key_refused"}`, "", 15),
		gauge("MeterplexPushUnknown", "ticket", `meterplex_billing_pushes_open{state="UNKNOWN"}`, "", 0, 1, 24,
			decoy(`meterplex_billing_pushes_open{state="PENDING"}`, 9)).steps(60),
		gauge("MeterplexPushLate", "ticket", "meterplex_billing_oldest_open_push_seconds", "", 86400, 86401, 0),
		sagaPartial(),
		gauge("MeterplexSagaLate", "ticket", `meterplex_saga_open{state="PARTIAL"}`, "", 0, 1, 15,
			decoy(`meterplex_saga_open{state="RUNNING"}`, 9)),
		counter("MeterplexWebhookDisabled", "ticket", `meterplex_webhooks_disabled_total{reason="gone"}`, `reason="gone"`, 60),
		gauge("MeterplexWebhooksLate", "ticket", "meterplex_webhook_oldest_due_seconds", "", 60, 61, 5),

		noInstance(), metricAbsent(),
		gauge("MeterplexCertificateExpires", "ticket", "meterplex_certificate_expires_seconds", `instance="a"`, 14*86400, 14*86400-1, 0),
		gauge("MeterplexOperatorKeyExpires", "ticket", "meterplex_operator_key_expires_seconds", "", 14*86400, 14*86400-1, 0),
	}
	for _, reason := range []string{"promoted", "restored", "set_back"} {
		metric := func(r string) string { return fmt.Sprintf(`meterplex_log_epoch_raised_seconds{reason=%q}`, r) }
		all = append(all, gauge("MeterplexServerReplaced", "page", metric(reason), fmt.Sprintf(`reason=%q`, reason), 900, 899, 0,
			decoy(metric("restarted"), 5), decoy(metric("first"), 5)))
	}
	return append(all, burns()...)
}

// steps sets the minutes of a step.
func (c ruleCase) steps(minutes int) ruleCase {
	c.step = minutes
	return c
}

// allInstances lets the alert fire only if all instances report the value.
func (c ruleCase) allInstances() ruleCase {
	one := c.scenarios[0]
	both := scenario{checks: one.checks}
	name, values, _ := strings.Cut(one.series[0], " ")
	both.series = append([]string{one.series[0], strings.Replace(name, `instance="a"`, `instance="b"`, 1) + " " + values},
		one.series[2:]...)
	for i := range one.checks {
		one.checks = append([]check{}, one.checks...)
		one.checks[i].fires = nil
	}
	c.scenarios = []scenario{one, both}
	return c
}

func disk() ruleCase {
	const file = `{job="node",instance="db",device="sda",fstype="ext4",mountpoint="/"}`
	s := scenario{series: []string{"node_filesystem_avail_bytes" + file + " " + phases(20, 19, 0),
		"node_filesystem_size_bytes" + file + " 100x300",
		strings.Replace("node_filesystem_avail_bytes"+file+" 0x300", "ext4", "tmpfs", 1),
		strings.Replace("node_filesystem_size_bytes"+file+" 100x300", "ext4", "tmpfs", 1)}}
	s.fires(0, strings.Trim(file, "{}"))
	return ruleCase{"MeterplexDiskFull", "page", 1, []scenario{s}}
}

func diskNotWatched() ruleCase {
	const avail, size, ext4, tmpfs = "node_filesystem_avail_bytes", "node_filesystem_size_bytes", `{job="node",fstype="ext4"}`,
		`{job="node",fstype="tmpfs"}`
	const gone, there = " 1x9 stale _x30 1x20", " 1x100"
	checks := []check{{9, nil}, {24, nil}, {25, []string{"-"}}, {40, []string{"-"}}, {45, nil}}
	return ruleCase{"MeterplexDiskNotWatched", "ticket", 1, []scenario{
		{series: []string{avail + ext4 + gone, size + ext4 + there, avail + tmpfs + there}, checks: checks},
		{series: []string{avail + ext4 + there, size + ext4 + gone}, checks: checks},
	}}
}

// consumerErrors has a consumer with much traffic until step 30, so that each window matters.
func consumerErrors() ruleCase {
	of := func(result string) string {
		return with(`meterplex_events_consumed_total{consumer="c",topic="t",result="` + result + `"}`)
	}
	bursts := ""
	for minute := range 100 {
		bursts += fmt.Sprintf(" %d", minute/4*24)
	}
	rest := []string{of("ok") + " 0+1000x30 30095+95x60", of("noop") + " 0x100",
		with(`meterplex_events_consumed_total{consumer="other",topic="t",result="ok"}`) + " 0+1000x100"}
	return ruleCase{"MeterplexConsumerErrors", "ticket", 1, []scenario{
		{series: append([]string{of("error") + " 0+5x100"}, rest...), checks: []check{{39, nil}, {60, nil}}},
		{series: append([]string{of("error") + " 0+5.2x50 260x40"}, rest...), checks: []check{{38, nil}, {39, []string{`consumer="c"`}},
			{50, []string{`consumer="c"`}}, {56, nil}}},
		// A burst of errors each 4 minutes: half of the window does not always see one.
		{series: append([]string{of("error") + bursts}, rest...), checks: []check{{38, nil}, {45, []string{`consumer="c"`}},
			{60, []string{`consumer="c"`}}}},
	}}
}

// usageRefused: one class of tenants is above the share, another has more events that limits refuse.
func usageRefused() ruleCase {
	of := func(class, verdict string) string {
		return with(fmt.Sprintf(`meterplex_events_ingested_total{tenant_class=%q,verdict=%q}`, class, verdict))
	}
	denied := func(class string) string {
		return with(fmt.Sprintf(`meterplex_quota_denied_total{tenant_class=%q}`, class))
	}
	rest := []string{denied("small") + " 0x100", of("large", "accepted") + " 0+50x100", of("large", "rejected") + " 0+50x100",
		denied("large") + " 0+50x100"}
	return ruleCase{"MeterplexUsageRefused", "ticket", 1, []scenario{
		{series: append([]string{of("small", "accepted") + " 0+95x100", of("small", "rejected") + " 0+5x100"}, rest...),
			checks: []check{{40, nil}, {90, nil}}},
		{series: append([]string{of("small", "accepted") + " 0+94x100", of("small", "rejected") + " 0+6x40 240x60"}, rest...),
			checks: []check{{5, nil}, {7, []string{`tenant_class="small"`}}, {40, []string{`tenant_class="small"`}}, {50, nil}}},
	}}
}

func sagaPartial() ruleCase {
	const ended = "meterplex_saga_completed_total"
	partial, success := with(ended+`{kind="k",outcome="partial"}`), with(ended+`{kind="k",outcome="success"}`)
	return ruleCase{"MeterplexSagaPartial", "ticket", 1, []scenario{
		{series: []string{partial + " 0+1x200", success + " 0+99x200"}, checks: []check{{100, nil}, {200, nil}}},
		{series: []string{partial + " 0+1.02x200", success + " 0+99x200", with(ended+`{kind="k",outcome="compensated"}`) + " 0x200"},
			checks: []check{{15, nil}, {16, []string{""}}, {200, []string{""}}}},
		// One of 60 ends partially: an hour and a quarter later the alert has cleared.
		{series: []string{partial + " 0x99 1x200", success + " 0+1x300"}, checks: []check{{100 + 14, nil}, {100 + 17, []string{""}},
			{100 + 58, []string{""}}, {100 + 62, nil}}},
	}}
}

func noInstance() ruleCase {
	up := func(instance, values string) string { return `up{` + job + `,instance="` + instance + `"} ` + values }
	other := `up{job="node",instance="a"} 1x100`
	down := []check{{9, nil}, {10, nil}, {11, []string{job}}, {19, []string{job}}, {20, nil}}
	return ruleCase{"MeterplexNoInstance", "page", 1, []scenario{
		{series: []string{up("a", "1x9 0x9 1x20"), up("b", "0x100"), other}, checks: down},
		{series: []string{up("a", "1x9 0x9 1x20"), up("b", "1x100"), other}, checks: []check{{11, nil}, {19, nil}}},
		{series: []string{up("a", "1x9 stale _x9 1x20"), other}, checks: []check{{9, nil}, {11, []string{"-"}}, {19, []string{"-"}},
			{20, nil}}},
	}}
}

// metricAbsent tests that the alert names each metric that is missing while an instance is scraped. In each scenario the half of the
// metrics is missing whose numbers have a bit, so that any two metrics differ in a scenario.
func metricAbsent() ruleCase {
	metrics := alertedMetrics()
	missing := func(values string, absent func(int) bool) (s scenario, labels []string) {
		for i, m := range metrics {
			if absent(i) {
				s.series, labels = append(s.series, with(m)+" "+values), append(labels, fmt.Sprintf(`metric=%q`, m))
			} else {
				s.series = append(s.series, with(m)+" 0x60")
			}
		}
		return s, labels
	}
	up, down, first := `up{`+job+`,instance="a"} 1x60`, `up{`+job+`,instance="a"} 0x60`, metrics[0]
	gone, named := with(first)+" 0x9 stale _x20 0x20", []string{fmt.Sprintf(`metric=%q`, first)}
	c := ruleCase{"MeterplexMetricAbsent", "page", 1, []scenario{
		// in no half
		{series: append([]string{up, gone}, others(first)...), checks: []check{{9, nil}, {14, nil}, {15, named}, {30, named}, {33, nil}}},
		// another alert fires
		{series: append([]string{down, gone}, others(first)...), checks: []check{{30, nil}}},
		{series: append([]string{down, gone, `up{job="node"} 1x60`}, others(first)...), checks: []check{{30, nil}}},
		{series: append([]string{up, gone, first + `{job="meterplex-b"} 0x60`}, others(first)...), checks: []check{{30, named}}},
	}}
	for bit := 1; bit < len(metrics); bit *= 2 {
		s, labels := missing("0x9 stale _x20 0x20", func(i int) bool { return i&bit != 0 })
		s.series, s.checks = append(s.series, up), []check{{9, nil}, {14, nil}, {15, labels}, {30, labels}, {33, nil}}
		c.scenarios = append(c.scenarios, s)
	}
	return c
}

// others are series of all metrics but one.
func others(than string) (all []string) {
	for _, m := range alertedMetrics() {
		if m != than {
			all = append(all, with(m)+" 0x60")
		}
	}
	return all
}
