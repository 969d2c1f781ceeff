package events

import "github.com/google/uuid"

// Kinds of a replay.
const (
	ReplayRange    = "range"    // events of the log are published again for outside readers, with a mark
	ReplayRelay    = "relay"    // the relay's cursors move back, and the relay fills the topics again
	ReplayConsumer = "consumer" // a consumer reads again
)

// Replay is the payload of ReplayRequested. The event's own id is the replay's.
type Replay struct {
	Kind      string       `json:"kind"`                // range or consumer
	Topic     string       `json:"topic,omitempty"`     // for a range
	TenantID  *uuid.UUID   `json:"tenantId,omitempty"`  // limits it to this tenant
	Stretches []ReplayStep `json:"stretches,omitempty"` // for a range: first and last position of each
	Consumer  string       `json:"consumer,omitempty"`  // the group to rewind: that of usage.commands
	To        string       `json:"to,omitempty"`        // for a consumer: start, or a time
	Reason    string       `json:"reason"`
}

// ReplayEnd is the payload of ReplayDone.
type ReplayEnd struct {
	ReplayID uuid.UUID `json:"replayId"`
	Topic    string    `json:"topic"`
	Records  int64     `json:"records"`           // published, without repetitions after a crash
	Failure  string    `json:"failure,omitempty"` // why it ended early
}

// Rewind is the payload of Rewound: a cursor of the relay, or the offsets of the consumer of usage.commands, moved
// back; or a consumer of the log was to read again, for which no position moves. No event is counted twice because of it.
type Rewind struct {
	ReplayID uuid.UUID    `json:"replayId"`
	Kind     string       `json:"kind"` // relay or consumer
	Consumer string       `json:"consumer,omitempty"`
	Steps    []ReplayStep `json:"steps"` // one for each partition that moved back
	Reason   string       `json:"reason"`
}

// ReplayStep is a range of a partition: positions of the log, or broker offsets if the
// consumer of usage.commands was rewound.
type ReplayStep struct {
	Partition int16 `json:"partition"`
	From      int64 `json:"from"`
	To        int64 `json:"to"`
}
