package observe

import (
	"fmt"
	"strings"
)

// exactness has no error budget: the first alert pages.
func exactness() Group {
	return Group{"exactness", "Exactness of figures", []Alert{
		{Name: "MeterplexIdentityBroken", Severity: Page, Owner: Service, Runbook: "exactness.md#the-balance-check-fails",
			Symptom: "Accepted events are missing from the figures, or count twice.",
			Expr:    `min by (job) (meterplex_identity_holds) == 0`},
		{Name: "MeterplexIdentityNotCompared", Severity: Ticket, Owner: Service, Runbook: "exactness.md#the-balance-is-not-checked",
			Symptom: "No instance has compared accepted events with the figures for an hour.",
			Expr:    `min by (job) (meterplex_identity_age_seconds) > 3600`},
		{Name: "MeterplexLogHole", Severity: Page, Owner: Database, Runbook: "exactness.md#the-log-has-a-hole",
			Symptom: "A position of the log has no event.",
			Expr:    grew(`meterplex_log_holes_total`, "job", "15m")},
		{Name: "MeterplexProjectionDrift", Severity: Page, Owner: Service, Runbook: "exactness.md#a-projection-drifts",
			Symptom: "Rows of a projection differ from the log.",
			Expr:    `max by (job, projection) (meterplex_projection_drift_rows) > 0`},
		{Name: "MeterplexQuotaDrift", Severity: Page, Owner: Service, Runbook: "exactness.md#accounts-of-limits-drift",
			Symptom: "Accounts of limits differ from the log.",
			Expr:    `max by (job) (meterplex_quota_drift) > 0`},
		{Name: "MeterplexPeriodDrift", Severity: Page, Owner: Billing, Runbook: "period-drift.md",
			Symptom: "The figures of a period that is to be closed differ from the log.",
			Expr:    `max by (job) (meterplex_saga_open{state="DRIFT"}) > 0`},
		{Name: "MeterplexPayloadConflicts", Severity: Ticket, Owner: Billing, Runbook: "exactness.md#payload-conflicts",
			Symptom: "A producer uses an eventId with another payload.",
			Expr:    grew(`meterplex_payload_conflicts_total`, "job", "15m")},
	}}
}

func outbox() Group {
	return Group{"outbox", "Outbox and relay", []Alert{
		{Name: "MeterplexOutboxStalled", Severity: Page, Owner: Service, Runbook: "outbox.md#events-are-not-published",
			Symptom: "Recorded events are not published.",
			Expr:    `max by (job) (meterplex_outbox_oldest_unpublished_seconds) > 60`, For: "4m"},
		{Name: "MeterplexPartitionWithoutLease", Severity: Page, Owner: Service, Runbook: "outbox.md#a-partition-has-no-lease",
			Symptom: "A log partition is relayed by no instance.",
			Expr:    `sum by (job) (meterplex_relay_leases) < 32`, For: "1m"},
		{Name: "MeterplexRecordsWithheld", Severity: Ticket, Owner: Service, Runbook: "outbox.md#records-are-refused",
			Symptom: "The broker refuses records for ever; empty ones take their places.",
			Expr:    grew(`meterplex_events_withheld_total`, "job, topic", "15m")},
		{Name: "MeterplexPublishRefused", Severity: Ticket, Owner: Service, Runbook: "outbox.md#records-are-refused",
			Symptom: "The broker or the schema registry refuses records.",
			Expr:    grew(`meterplex_publish_refused_total`, "job, topic, by", "15m")},
	}}
}

func consumers() Group {
	return Group{"consumers", "Consumers and projections", []Alert{
		{Name: "MeterplexProjectionLag", Severity: Page, Owner: Service, Runbook: "consumers.md#a-projection-is-behind",
			Symptom: "Figures are older than 5 seconds.",
			Expr:    `max by (job, projection) (meterplex_projection_lag_seconds) > 5`, For: "5m"},
		{Name: "MeterplexProjectionBacklog", Severity: Ticket, Owner: Service, Runbook: "consumers.md#a-projection-is-behind",
			Symptom: "A projection has more than 500 events to apply, and they are older than 5 seconds.",
			Expr:    `max by (job, projection) (meterplex_projection_lag_events) > 500 and max by (job, projection) (meterplex_projection_lag_seconds) > 5`, For: "5m"},
		{Name: "MeterplexDeadLetters", Severity: Page, Owner: Service, Runbook: "consumers.md#events-become-dead-letters",
			Symptom: "Events cannot be published or counted, more than one a minute.",
			Expr:    `sum by (job) (rate(meterplex_events_dlq_total{stage=~"PUBLISHING|AGGREGATION"}[5m])) * 60 > 1`, For: "5m"},
		{Name: "MeterplexUsageRefused", Severity: Ticket, Owner: Billing, Runbook: "consumers.md#usage-is-refused",
			Symptom: "More than 5 % of the usage of a class of tenants is refused for other reasons than a limit: it is not billed.",
			Expr: `(sum by (job, tenant_class) (rate(meterplex_events_ingested_total{verdict="rejected"}[15m])) - sum by (job, tenant_class) ` +
				`(rate(meterplex_quota_denied_total[15m])))` +
				` / sum by (job, tenant_class) (rate(meterplex_events_ingested_total[15m])) > 0.05`, For: "5m"},
		{Name: "MeterplexFailedDeadLetters", Severity: Ticket, Owner: Service, Runbook: "consumers.md#dead-letters-wait",
			Symptom: "More than 10 dead letters wait for a decision.",
			Expr:    `sum by (job) (max by (job, stage) (meterplex_dead_letters{status="FAILED",stage!="INGESTION"})) > 10`, For: "5m"},
		{Name: "MeterplexConsumerErrors", Severity: Ticket, Owner: Service, Runbook: "consumers.md#a-consumer-fails",
			Symptom: "More than 5 % of the events of a consumer fail.",
			Expr: `sum by (job, consumer) (rate(meterplex_events_consumed_total{result="error"}[5m])) / sum by (job, consumer) ` +
				`(rate(meterplex_events_consumed_total[5m])) > 0.05`,
			For: "5m"},
	}}
}

// disks excludes file systems that hold no data.
const disks = `{fstype!~"tmpfs|overlay|squashfs|ramfs"}`

func database() Group {
	return Group{"database", "Database", []Alert{
		{Name: "MeterplexStateNotRead", Severity: Page, Owner: Database, Runbook: "database.md#the-state-is-not-read",
			Symptom: "No instance can read the database.",
			Expr:    `min by (job) (meterplex_state_age_seconds) > 60`, For: "1m"},
		{Name: "MeterplexInstanceStateNotRead", Severity: Ticket, Owner: Service, Runbook: "database.md#the-state-is-not-read",
			Symptom: "One instance cannot read the database.",
			Expr:    `meterplex_state_age_seconds > 300`, For: "5m"},
		{Name: "MeterplexServerReplaced", Severity: Page, Owner: Database, Runbook: "failover.md",
			Symptom: "A promoted or restored database server was found.",
			Expr:    `min by (job, reason) (meterplex_log_epoch_raised_seconds{reason=~"promoted|restored|set_back"}) < 900`},
		{Name: "MeterplexStandbyMissing", Severity: Page, Owner: Database, Runbook: "database.md#the-synchronous-standby-is-missing",
			Symptom: "A synchronous standby is missing: writes wait.",
			Expr:    `max by (job) (meterplex_synchronous_standbys_missing) > 0`, For: "1m"},
		{Name: "MeterplexArchiveOld", Severity: Page, Owner: Database, Runbook: "database.md#wal-is-not-archived",
			Symptom: "WAL was not archived for 5 minutes.",
			Expr:    `max by (job) (meterplex_wal_archived_seconds) > 300`},
		{Name: "MeterplexWALRetained", Severity: Page, Owner: Database, Runbook: "database.md#wal-fills-the-disk",
			Symptom: "The server keeps more than 80 % of the WAL that it may keep.",
			Expr:    `max by (job) (meterplex_wal_bytes) > 0.8 * max by (job) (meterplex_wal_limit_bytes)`},
		{Name: "MeterplexDiskFull", Severity: Page, Owner: Database, Runbook: "database.md#a-disk-is-full",
			Symptom: "More than 80 % of a file system is used.",
			Expr:    `1 - node_filesystem_avail_bytes` + disks + ` / node_filesystem_size_bytes > 0.8`},
		{Name: "MeterplexDiskNotWatched", Severity: Ticket, Owner: Database, Runbook: "database.md#a-disk-is-full",
			Symptom: "No node exporter reports the disks.",
			Expr:    `absent(node_filesystem_avail_bytes` + disks + `) or absent(node_filesystem_size_bytes)`, For: "15m"},
		{Name: "MeterplexDatabaseNotMonitored", Severity: Ticket, Owner: Database, Runbook: "database.md#the-login-lacks-pg_monitor",
			Symptom: "The service may not read the size of the WAL and the standbys.",
			Expr:    `max by (job) (meterplex_database_monitored) == 0`, For: "15m"},
	}}
}

func billing() Group {
	return Group{"billing", "Billing, background processes and webhooks", []Alert{
		{Name: "MeterplexBillingDifference", Severity: Ticket, Owner: Billing, Runbook: "billing-difference.md",
			Symptom: "A total of the billing provider differs from the delivered amounts.",
			Expr:    `max by (job) (meterplex_billing_difference) > 0`, For: "2h"},
		{Name: "MeterplexPushFailed", Severity: Ticket, Owner: Billing, Runbook: "stripe-deliveries.md#a-delivery-failed",
			Symptom: "The billing provider refused a Stripe delivery.",
			Expr:    `max by (job) (meterplex_billing_pushes_open{state="FAILED"}) > 0`},
		{Name: "MeterplexBillingKeyRefused", Severity: Ticket, Owner: Billing, Runbook: "stripe-deliveries.md#the-secret-key-is-refused",
			Symptom: "The billing provider refuses the secret key: no amount is delivered.",
			Expr:    grew(`meterplex_billing_push_attempts_total{outcome="key_refused"}`, "job", "15m")},
		{Name: "MeterplexPushUnknown", Severity: Ticket, Owner: Billing, Runbook: "stripe-deliveries.md#a-delivery-is-unknown",
			Symptom: "It is not known whether the billing provider counts a Stripe delivery.",
			Expr:    `max by (job) (meterplex_billing_pushes_open{state="UNKNOWN"}) > 0`, For: "1d"},
		{Name: "MeterplexPushLate", Severity: Ticket, Owner: Billing, Runbook: "stripe-deliveries.md#a-delivery-is-late",
			Symptom: "A Stripe delivery was not counted for a day.",
			Expr:    `max by (job) (meterplex_billing_oldest_open_push_seconds) > 86400`},
		{Name: "MeterplexSagaPartial", Severity: Ticket, Owner: Billing, Runbook: "background-processes.md#background-processes-end-without-effects",
			Symptom: "More than 1 % of the background processes ended without some of their effects.",
			Expr:    `sum by (job) (increase(meterplex_saga_completed_total{outcome="partial"}[1h])) / sum by (job) (increase(meterplex_saga_completed_total[1h])) > 0.01`,
			For:     "15m"},
		{Name: "MeterplexSagaLate", Severity: Ticket, Owner: Billing, Runbook: "background-processes.md#a-background-process-is-late",
			Symptom: "A background process has passed its deadline.",
			Expr:    `max by (job) (meterplex_saga_open{state="PARTIAL"}) > 0`, For: "15m"},
		{Name: "MeterplexWebhookDisabled", Severity: Ticket, Owner: Billing, Runbook: "webhooks.md#a-webhook-was-disabled",
			Symptom: "A webhook was disabled because its endpoint fails.",
			Expr:    grew(`meterplex_webhooks_disabled_total`, "job, reason", "1h")},
		{Name: "MeterplexWebhooksLate", Severity: Ticket, Owner: Service, Runbook: "webhooks.md#deliveries-are-late",
			Symptom: "Deliveries of webhooks are due and are not sent.",
			Expr:    `max by (job) (meterplex_webhook_oldest_due_seconds) > 60`, For: "5m"},
	}}
}

// instances lists the alerts on the instances, and the alert that a metric of the other alerts is absent.
func instances(others []Group) Group {
	own := []Alert{
		{Name: "MeterplexNoInstance", Severity: Page, Owner: Service, Runbook: "instances.md#no-instance-is-scraped",
			Symptom: "Prometheus scrapes no instance.",
			Expr:    `sum by (job) (up{` + jobs + `}) == 0 or absent(up{` + jobs + `})`, For: "1m"},
		{Name: "MeterplexCertificateExpires", Severity: Ticket, Owner: Service, Runbook: "instances.md#a-certificate-expires",
			Symptom: "The certificate of HTTP expires within 14 days.",
			Expr:    `meterplex_certificate_expires_seconds < 1209600`},
		{Name: "MeterplexOperatorKeyExpires", Severity: Ticket, Owner: Service, Runbook: "instances.md#an-operator-key-expires",
			Symptom: "An operator key expires within 14 days.",
			Expr:    `min by (job) (meterplex_operator_key_expires_seconds) < 1209600`},
	}
	exprs := recorded()
	for _, g := range append(others, Group{Alerts: own}) {
		for i := range g.Alerts {
			exprs = append(exprs, g.Alerts[i].Expr)
		}
	}
	var absent []string
	for _, metric := range metricsOf(exprs...) {
		absent = append(absent,
			fmt.Sprintf(`label_replace(count by (job) (up{%s} == 1) unless count by (job) (%s), "metric", "%s", "", "")`, jobs, metric,
				metric))
	}
	return Group{"instances", "Instances",
		append(own, Alert{Name: "MeterplexMetricAbsent", Severity: Page, Owner: Service, Runbook: "instances.md#a-metric-is-absent",
			Symptom: "An instance is scraped, and a metric of the alerts is absent: they cannot fire.",
			Expr:    strings.Join(absent, " or "), For: "5m"})}
}
