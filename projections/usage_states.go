package projections

// States of a usage event in receipts and lists.
const (
	UsagePending      = "PENDING"       // recorded, without a verdict
	UsageValidated    = "VALIDATED"     // accepted by the validator, not in the aggregates yet
	UsageAggregated   = "AGGREGATED"    // counted
	UsageRejected     = "REJECTED"      // refused by the validator, or discarded
	UsageDeadLettered = "DEAD_LETTERED" // parked: could not be published or folded
)
