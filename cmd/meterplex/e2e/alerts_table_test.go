package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/deploy/observe"
	"github.com/meterplex/meterplex/deploy/observe/feed"
	"github.com/meterplex/meterplex/internal/must"
)

// causeOfAlert is the fault by which a test causes an alert.
type causeOfAlert struct{ fault, test string }

// causesOfAlerts names the fault of each alert.
func causesOfAlerts() map[string]causeOfAlert {
	const service, server = "TestEveryAlertFiresForItsFault", "TestEveryAlertOnTheServerFiresForItsFault"
	const text = "the cases of disks in deploy/observe"
	return map[string]causeOfAlert{
		"MeterplexSLOBurn14_4": {"the database refuses rows: its disk is full", service},
		"MeterplexSLOBurn6":    {"the same", service},
		"MeterplexSLOBurn3":    {"the same", service},
		"MeterplexSLOBurn1":    {"the same", service},

		"MeterplexIdentityBroken":      {"a row of usage_aggregates is deleted as the superuser", service},
		"MeterplexIdentityNotCompared": {"no instance reaches the database", service},
		"MeterplexLogHole":             {"a row of the log is deleted as the superuser", service},
		"MeterplexProjectionDrift":     {"rows of usage_series are changed as the superuser", service},
		"MeterplexQuotaDrift":          {"an account is changed as the superuser", service},
		"MeterplexPeriodDrift":         {"a figure is changed as the superuser before its period is closed", service},
		"MeterplexPayloadConflicts":    {"a producer sends eventIds again with other amounts", service},

		"MeterplexOutboxStalled":         {"the relaying instance does not reach the broker", service},
		"MeterplexPartitionWithoutLease": {"the relaying instance is killed", service},
		"MeterplexRecordsWithheld":       {"a record is larger than max.message.bytes of its topic", service},
		"MeterplexPublishRefused":        {"the same", service},

		"MeterplexProjectionLag":     {"the aggregating instance is frozen", service},
		"MeterplexProjectionBacklog": {"the same, and 600 events arrive", service},
		"MeterplexDeadLetters":       {"the database refuses the rows of two tenants' folds", service},
		"MeterplexUsageRefused":      {"a producer writes invalid messages to usage.commands", service},
		"MeterplexFailedDeadLetters": {"the same", service},
		"MeterplexConsumerErrors":    {"the database refuses the rows of two tenants' folds", service},

		"MeterplexStateNotRead":         {"no instance reaches the database", service},
		"MeterplexInstanceStateNotRead": {"one instance does not reach the database", service},
		"MeterplexServerReplaced":       {"the primary is killed, and its standby is promoted", server},
		"MeterplexStandbyMissing":       {"the synchronous standby is killed", server},
		"MeterplexArchiveOld":           {"archive_command fails", server},
		"MeterplexWALRetained":          {"a slot without a reader keeps WAL", server},
		"MeterplexDiskFull":             {"the node exporter, which is no program of the project, reports it", text},
		"MeterplexDiskNotWatched":       {"the same", text},
		"MeterplexDatabaseNotMonitored": {"pg_monitor is revoked", server},

		"MeterplexBillingDifference": {"another program sends meter events for the customer", service},
		"MeterplexPushFailed":        {"the customer does not exist at the provider", service},
		"MeterplexBillingKeyRefused": {"the provider answers 401", service},
		"MeterplexPushUnknown":       {"the provider's connections end without an answer", service},
		"MeterplexPushLate":          {"the provider answers 401, and the push is set back by 25 hours", service},
		"MeterplexSagaPartial":       {"a period is closed despite dead letters", service},
		"MeterplexSagaLate":          {"a close waits for dead letters, and its deadline is set back", service},
		"MeterplexWebhookDisabled":   {"an endpoint answers 410", service},
		"MeterplexWebhooksLate":      {"the notifying instance is frozen", service},

		"MeterplexNoInstance":         {"all instances are killed", service},
		"MeterplexMetricAbsent":       {"Prometheus drops the metric, as metric_relabel_configs does", service},
		"MeterplexCertificateExpires": {"an instance starts with a certificate that ends in 7 days", service},
		"MeterplexOperatorKeyExpires": {"a key is created that ends in 7 days", service},
	}
}

// TestEveryAlertHasAFault fails if an alert of the table has no fault that causes it.
func TestEveryAlertHasAFault(t *testing.T) {
	causes := causesOfAlerts()
	names := map[string]bool{}
	for _, a := range observe.Alerts() {
		names[a.Name] = true
		if causes[a.Name].fault == "" {
			t.Errorf("%s has no fault", a.Name)
		}
	}
	for name := range causes {
		if !names[name] {
			t.Errorf("%s is no alert", name)
		}
	}
}

// How often what a page depends on is read, and scraped. infra/prometheus reads the state of the database each 2 s, of its server each 4 s, and compares the identity each 10 s.
const (
	atOnce       = 0 * time.Second
	stateEach    = 2 * time.Second
	serverEach   = 4 * time.Second
	identityEach = 10 * time.Second
	scrapeEach   = 15 * time.Second
)

// slowest is the time from the fault of a page until its metric passes the threshold: until it is read, and the age that the rule compares with.
func slowest() map[string][2]time.Duration {
	return map[string][2]time.Duration{
		"MeterplexSLOBurn14_4": {atOnce, 26 * time.Second}, "MeterplexSLOBurn6": {atOnce, 65 * time.Second}, // if all requests fail, and as many are sent as before
		"MeterplexIdentityBroken": {identityEach}, "MeterplexLogHole": {5 * time.Second}, "MeterplexProjectionDrift": {stateEach}, "MeterplexQuotaDrift": {2 * stateEach}, "MeterplexPeriodDrift": {stateEach},
		"MeterplexOutboxStalled": {stateEach, time.Minute}, "MeterplexPartitionWithoutLease": {atOnce},
		"MeterplexProjectionLag": {stateEach, 5 * time.Second}, "MeterplexDeadLetters": {atOnce},
		"MeterplexStateNotRead": {atOnce, time.Minute}, "MeterplexServerReplaced": {serverEach}, "MeterplexStandbyMissing": {serverEach},
		"MeterplexArchiveOld": {serverEach, 5 * time.Minute}, "MeterplexWALRetained": {serverEach}, "MeterplexDiskFull": {atOnce},
		"MeterplexNoInstance": {atOnce}, "MeterplexMetricAbsent": {atOnce},
	}
}

// A page fires within 6 minutes of its fault, those of figures within one.
func TestPagesFireInTime(t *testing.T) {
	document, err := os.ReadFile(filepath.Join(repository(), "docs", "alerts.md"))
	must.OK(t, err)
	for _, g := range observe.Groups() {
		for _, a := range g.Alerts {
			parts, listed := slowest()[a.Name]
			if listed != (a.Severity == observe.Page) {
				t.Errorf("%s is of severity %s; its time is listed: %t", a.Name, a.Severity, listed)
			}
			if !listed {
				continue
			}
			limit := 6 * time.Minute
			if g.Name == "exactness" {
				limit = time.Minute
			}
			took := parts[0] + parts[1] + feed.Delay(&a) + scrapeEach
			if took >= limit {
				t.Errorf("%s fires after %s, and has to within %s", a.Name, took, limit)
			}
			if row := fmt.Sprintf("| %s | %s |", a.Name, took); !strings.Contains(string(document), row) {
				t.Errorf("docs/alerts.md has no row %q", row)
			}
		}
	}
}

// Each runbook of an alert has all parts, and a command of its check that runs.
func TestEveryRunbookHasAllParts(t *testing.T) {
	for _, a := range observe.Alerts() {
		parts, err := runbookOf(a.Runbook)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, part := range partsOfRunbooks() {
			if parts[part] == "" {
				t.Errorf("%s: docs/runbooks/%s has no part %q", a.Name, a.Runbook, part)
			}
		}
		if len(commandsOf(parts[checkPart])) == 0 {
			t.Errorf("%s: the check of docs/runbooks/%s has no command", a.Name, a.Runbook)
		}
	}
}
