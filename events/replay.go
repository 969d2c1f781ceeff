package events

import "github.com/google/uuid"

// Kinds of a replay.
const (
	ReplayRange    = "range"    // events of the log are published again, marked, for outside readers
	ReplayRelay    = "relay"    // the relay's cursors go back: the topics are filled again
	ReplayConsumer = "consumer" // a consumer group's offsets go back
)

// Replay is the payload of ReplayRequested. The event's own id is the replay's.
type Replay struct {
	Kind      string       `json:"kind"`                // range or consumer
	Topic     string       `json:"topic,omitempty"`     // of a range
	TenantID  *uuid.UUID   `json:"tenantId,omitempty"`  // only this one's events
	Stretches []ReplayStep `json:"stretches,omitempty"` // of a range, first and last position of each
	Consumer  string       `json:"consumer,omitempty"`  // that goes back
	To        string       `json:"to,omitempty"`        // start, or a time; a consumer's
	Positions []Position   `json:"positions,omitempty"` // or where it is to be in each partition
	Reason    string       `json:"reason"`
}

// ReplayEnd is the payload of ReplayDone.
type ReplayEnd struct {
	ReplayID uuid.UUID `json:"replayId"`
	Topic    string    `json:"topic"`
	Records  int64     `json:"records"`           // published, repetitions after a crash not counted
	Failure  string    `json:"failure,omitempty"` // why it ended early
}

// Rewind is the payload of Rewound: a cursor of the relay's, or a consumer
// group's offsets, went back. Nothing is counted twice for it.
type Rewind struct {
	ReplayID uuid.UUID    `json:"replayId"`
	Kind     string       `json:"kind"` // relay or consumer
	Consumer string       `json:"consumer,omitempty"`
	Steps    []ReplayStep `json:"steps"` // of each partition that went back
	Reason   string       `json:"reason"`
}

// ReplayStep is a stretch of a partition: positions of the log, or, where a
// consumer went back, offsets of the pipe.
type ReplayStep struct {
	Partition int16 `json:"partition"`
	From      int64 `json:"from"`
	To        int64 `json:"to"`
}
