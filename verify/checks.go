package verify

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// report holds the result of each check, one for each line of the output.
type report struct {
	positions, logOrder, placement, dedupeKeys, payloadHashes, headCounters, checkpointBounds,
	unchanged *tally
	verdicts, verdictContents, usageAggregates, usageByGrant, runningTotals, entitlementUsage, usageSeries, usageRefusals, consumedVerdicts,
	deadLetters *tally
	correctedUsage, quotaAccounts, quotaGrants, reservationLives, reservations,
	thresholdCrossings *tally
	frozenFigures, frozenSums, frozenCharges, adjustments, adjustmentStates, closedPeriods,
	pushes *tally
	pushFailures, catalogued, webhooks,
	offboardings *tally
	relayLeases, liveGenerations, rowSecurity, roleRights,
	idleSessions *tally
	topicEvents, recordBytes,
	publishOrder *tally

	all []*tally
}

// scope is the data that a check reads.
type scope int

const (
	perPartition  scope = iota // the rows of each partition, and the tables derived from them
	wholeDatabase              // the whole database
	perTopic                   // the topics, compared with the rows of each partition
)

// steps are the steps of a check; each is nil if the check does not need it. A check of the
// topics has no call here: topicPass calls it.
type steps struct {
	// for each row of a partition, in order; err is of the content
	row     func(x *pass, r *row, s *content, err error)
	end     func(x *pass)                                                            // after the last row of a partition
	compare func(x *pass, ctx context.Context, tx pgx.Tx) error                      // with the tables, in the snapshot of the partition
	whole   func(v *verifier, ctx context.Context) error                             // once, after all partitions
	watch   func(v *verifier, ctx context.Context, before, after *observation) error // once, with both observations
}

// newReport lists the checks of log, tables and topics, in the order of the output. A new check
// is an entry here, its field in report, and a file with the name of the field. The checks over HTTP are
// those of ServiceChecks.
func newReport() *report {
	r := &report{}
	for _, c := range []struct {
		tally      **tally
		scope      scope
		name, unit string
		steps      steps
	}{
		{&r.positions, perPartition, "P1 positions run from 1 to the head without a gap", "events",
			steps{row: (*pass).addPosition, end: (*pass).endPositions}},
		{&r.logOrder, perPartition, "P10 events are in the order in which they were recorded", "events",
			steps{row: (*pass).addOrder, end: (*pass).endOrder}},
		{&r.placement, perPartition, "P9 each event is in its tenant's partition and on its subject's topic", "events",
			steps{row: (*pass).addPlacement}},
		{&r.dedupeKeys, perPartition, "P2 each dedupe key is stored once for a tenant", "keys",
			steps{row: (*pass).addKey, compare: (*pass).duplicates}},
		{&r.payloadHashes, perPartition, "P4 stored hashes match the payloads", "payloads",
			steps{row: (*pass).addHash, compare: (*pass).compareConflicts}},
		{&r.headCounters, perPartition, "P3 the counters of the heads match the rows", "heads", steps{end: (*pass).endCounters}},
		{&r.checkpointBounds, perPartition, "P1 no checkpoint is beyond the head", "checkpoints", steps{end: (*pass).endCheckpoints}},
		{&r.unchanged, wholeDatabase, "P1 recorded events do not change and no position decreases", "events read twice",
			steps{watch: (*verifier).checkUnchanged}},
		{&r.verdicts, perPartition, "P3 each recorded event up to the validator's checkpoint has one result", "recorded events",
			steps{row: (*pass).addVerdict, end: (*pass).endVerdicts}},
		{&r.verdictContents, perPartition, "P3 each result matches its recorded event", "results", steps{}}, // a step of verdicts
		{&r.usageAggregates, perPartition, "P5 usage_aggregates equals the sum of the log up to its checkpoint", "rows",
			steps{row: (*pass).addFigure, compare: (*pass).compareUsage}},
		// rows: a step of usageAggregates
		{&r.usageByGrant, perPartition, "P8 usage_by_grant equals the sum of the results that name a grant", "rows",
			steps{compare: (*pass).compareGrants}},
		// rows: a step of usageAggregates
		{&r.runningTotals, perPartition, "P12 running totals equal the sums of the log up to their positions", "totals",
			steps{end: (*pass).endTotals, compare: (*pass).compareTotals}},
		{&r.entitlementUsage, perPartition, "P5 entitlement_usage equals the sum of the log up to its checkpoint", "rows",
			steps{compare: (*pass).compareUsed}},
		{&r.usageSeries, perPartition, "P5 usage_series equals the sum of the log up to its checkpoint, hour by hour", "hours",
			steps{compare: (*pass).compareHours}},
		{&r.usageRefusals, perPartition, "P5 usage_refusals equals the sum of the log up to its checkpoint", "groups",
			steps{row: (*pass).addRefused, compare: (*pass).compareRefused}},
		{&r.correctedUsage, perPartition, "P5 each correction is counted once, by its target, and not after a retraction", "corrections",
			steps{row: (*pass).addCorrected, compare: (*pass).compareCorrected}},
		{&r.quotaAccounts, perPartition, "P7 quota_accounts equal the grants, the results and the reservations in the log", "accounts",
			steps{row: (*pass).addAccount, compare: (*pass).compareAccounts}},
		// a step of quotaAccounts
		{&r.quotaGrants, perPartition, "P7 no grant passes a HARD limit, and each records its account", "grants", steps{}},
		// a step of quotaAccounts
		{&r.reservationLives, perPartition, "P7 each reservation is held once and ends once", "reservations", steps{}},
		{&r.reservations, perPartition, "P7 the reservations in the table are those of the log", "rows",
			steps{compare: (*pass).compareReservations}},
		{&r.thresholdCrossings, perPartition, "P7 each threshold is crossed once for each period and value, by the event that rises to it",
			"crossings", steps{row: (*pass).addCrossing, end: (*pass).endCrossings}},
		{&r.frozenFigures, perPartition, "P8 each closed period has the figures that its events froze, with their hash", "snapshots",
			steps{row: (*pass).addPeriod, compare: (*pass).compareFrozen}},
		{&r.frozenSums, perPartition, "P8 each frozen figure is the sum of the results that were caused up to its cut", "lines",
			steps{row: (*pass).addFrozenSum, compare: (*pass).compareSums}},
		// rows: a step of frozenFigures
		{&r.frozenCharges, perPartition, "P8 each frozen charge follows from its figure, its grant and the version of its price",
			"snapshots", steps{compare: (*pass).compareCharges}},
		{&r.adjustments, perPartition, "P8 each late result is one adjustment, and each event counts in the frozen figure or as " +
			"an adjustment", "adjustments", steps{row: (*pass).addAdjustment, compare: (*pass).compareAdjustments}},
		// a step of adjustments
		{&r.adjustmentStates, perPartition, "P8 the states of adjustments follow from the decisions, reopenings and discards in the log",
			"states", steps{}},
		{&r.closedPeriods, perPartition, "P8 each figure of a closed period is its frozen figure and its adjustments", "lines",
			steps{compare: (*pass).compareClosed}},
		{&r.pushes, perPartition, "P8 the Stripe deliveries of each closed period are its billable figure, and each is delivered once",
			"deliveries",
			steps{compare: (*pass).comparePushes}},
		{&r.pushFailures, perPartition,
			"P8 the failures of Stripe deliveries and the differences to the provider's totals are those of the log",
			"events", steps{row: (*pass).addPushEnd, compare: (*pass).comparePushEnds}},
		{&r.catalogued, perPartition, "P5 the rows of the catalogue follow from the log", "rows",
			steps{row: (*pass).addCatalogue, compare: (*pass).compareCatalogue}},
		{&r.offboardings, perPartition, "P8 each offboarding follows its steps, keeps what its manifest lists, and ends the tenant's " +
			"keys and usage", "offboardings", steps{row: (*pass).addOffboarding, compare: (*pass).compareOffboardings}},
		{&r.webhooks, perPartition, "P3 each event that a webhook selects has one delivery, and each delivery an event of its tenant",
			"deliveries", steps{row: (*pass).addWebhook, compare: (*pass).compareWebhooks}},
		// a step of usageAggregates
		{&r.consumedVerdicts, perPartition, "P3 consumed results = applied + dead-lettered + withheld", "results consumed", steps{}},
		{&r.deadLetters, perPartition, "P3 dead letters and their states match the log", "dead letters",
			steps{row: (*pass).addLetter, compare: (*pass).compareLetters}},
		{&r.relayLeases, wholeDatabase, "P10 each partition is leased by one live relay", "partitions", steps{watch: (*verifier).leases}},
		{&r.liveGenerations, wholeDatabase, "P5 each projection has one set of live rows for all tenants", "projections",
			steps{whole: (*verifier).generations}},
		{&r.rowSecurity, wholeDatabase, "P9 row level security is forced on every table that tenants read", "tables",
			steps{whole: (*verifier).checkRowSecurity}},
		{&r.roleRights, wholeDatabase, "P6 the roles of the service own no object and cannot alter the log", "roles",
			steps{whole: (*verifier).rights}},
		{&r.idleSessions, wholeDatabase, "no session of the service is idle in a transaction", "sessions",
			steps{watch: (*verifier).sessions}},
		{&r.topicEvents, perTopic, "P11 the topics hold the same events as the log", "records", steps{}},
		{&r.recordBytes, perTopic, "P11 each record equals its event byte for byte", "records", steps{}},
		{&r.publishOrder, perTopic, "P10 events of a tenant are first published in the order of the log", "first records", steps{}},
	} {
		*c.tally = &tally{name: c.name, unit: c.unit, scope: c.scope, steps: c.steps}
		r.all = append(r.all, *c.tally)
	}
	return r
}

// of returns the checks of a scope.
func (r *report) of(s scope) (list []*tally) {
	for _, t := range r.all {
		if t.scope == s {
			list = append(list, t)
		}
	}
	return list
}

func (r *report) skip(why string, which ...*tally) {
	for _, t := range which {
		t.skip = why
	}
}

// read marks the checks that the partitions' passes have completed.
func (r *report) read() {
	for _, t := range r.all {
		t.done = t.done || t.scope != wholeDatabase
	}
}

// unknown marks the checks that were not completed.
func (r *report) unknown(err error) {
	for _, t := range r.all {
		if !t.done {
			t.incomplete(err)
		}
	}
}

func (r *report) list() []Check {
	list := make([]Check, len(r.all))
	for i, t := range r.all {
		list[i] = t.result()
		list[i].Needs = "database"
		if t.scope == perTopic {
			list[i].Needs = "topics"
		}
	}
	return list
}
