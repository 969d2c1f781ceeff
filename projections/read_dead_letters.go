package projections

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// DeadLetterQuery asks for dead letters; "" and nil are all. Reason is a code.
// From and To are of the first failure, half open.
type DeadLetterQuery struct {
	Status   string
	Stage    string
	Reason   string
	TenantID *uuid.UUID
	From, To *time.Time
	Limit    int
	After    string
}

// DeadLetter is an event that failed. Topic, KafkaPartition and KafkaOffset are
// where the source event lies on the broker; null where it does not, or nobody
// noted it. Payload and KafkaOffset are looked up for a single dead letter; in
// lists the payload is left out and the offset only told where it was recorded.
type DeadLetter struct {
	ID             uuid.UUID       `json:"id"`
	TenantID       uuid.UUID       `json:"tenantId"`
	Stage          string          `json:"stage"`
	Status         string          `json:"status"`
	Code           string          `json:"code"`
	Reason         string          `json:"reason"`
	Details        json.RawMessage `json:"details,omitempty"`
	EventID        string          `json:"eventId"`
	Feature        string          `json:"feature"`
	SourcePosition events.Position `json:"sourcePosition"`
	Topic          string          `json:"topic"`
	KafkaPartition *int16          `json:"kafkaPartition"`
	KafkaOffset    *int64          `json:"kafkaOffset"`
	Payload        json.RawMessage `json:"payload,omitempty"`
	RetryCount     int             `json:"retryCount"`
	FirstFailedAt  time.Time       `json:"firstFailedAt"`
	LastFailedAt   time.Time       `json:"lastFailedAt"`
}

// DeadLetterPage is a page. Next is the cursor of the next one, "" on the last.
type DeadLetterPage struct {
	Data []DeadLetter
	Next string
}

// DeadLetters lists dead letters, newest first.
func (r *Reads) DeadLetters(ctx context.Context, v Viewer, q DeadLetterQuery) (DeadLetterPage, error) {
	return DeadLetterPage{}, errUnwritten
}

// DeadLetter gives one; ErrNotFound where the viewer sees none with this id.
func (r *Reads) DeadLetter(ctx context.Context, v Viewer, id uuid.UUID) (DeadLetter, error) {
	return DeadLetter{}, errUnwritten
}
