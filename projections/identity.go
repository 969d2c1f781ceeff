package projections

import "context"

// Terms are the terms of "accepted = applied + rejected + undecided + unapplied +
// parked", each from its own source.
type Terms struct {
	Accepted  int64 `json:"accepted"`  // counted with each recorded event
	Applied   int64 `json:"applied"`   // verdicts folded into the live aggregates
	Rejected  int64 `json:"rejected"`  // counted with each rejection
	Undecided int64 `json:"undecided"` // recorded beyond the validator's checkpoint
	Unapplied int64 `json:"unapplied"` // validated beyond the aggregator's checkpoint
	Parked    int64 `json:"parked"`    // counted with each failure to publish or fold
	Validated int64 `json:"validated"` // counted with each verdict; no term of the identity
	Missing   int64 `json:"missing"`   // accepted less the other terms: 0, or something is wrong
}

// PartitionTerms are the terms of one log partition.
type PartitionTerms struct {
	Partition int16 `json:"partition"`
	Terms
}

// Identity tells where every accepted event is. Holds is true where nothing is
// missing, in any partition.
type Identity struct {
	Holds      bool             `json:"holds"`
	InFlight   int64            `json:"inFlight"` // undecided and unapplied
	Total      Terms            `json:"total"`
	Partitions []PartitionTerms `json:"partitions"`
}

// Identity computes the terms in one snapshot, for operators.
func (r *Reads) Identity(ctx context.Context) (Identity, error) {
	return Identity{}, errUnwritten
}
