package watermill

import (
	"errors"
	"fmt"
	"slices"
)

// ErrUnknownTopic says that a topic is not in the registry.
var ErrUnknownTopic = errors.New("the topic is not in the registry")

// ErrTooLarge says that a record exceeds the pipe's limit.
var ErrTooLarge = errors.New("the record is too large")

// ErrBehind says that a record was not sent because an earlier record of its partition failed. Records
// must first appear in order.
var ErrBehind = errors.New("not sent: a record before it on the partition failed")

// ErrClosed says that the publisher or subscriber was closed.
var ErrClosed = errors.New("closed")

// FailedRecord is a record of a publish call that is not known to be stored.
type FailedRecord struct {
	Index int // within the call's records
	// Permanent: this record can never be published. All other failed records must be sent
	// again; some of them may be stored already.
	Permanent bool
	Err       error
}

// PublishError lists the failed records of a call. The others are stored.
type PublishError struct {
	Failed []FailedRecord // ascending by Index
	Total  int            // number of records in the call
}

// Error shows the first permanent failure, else the first failure other than ErrBehind.
func (e *PublishError) Error() string {
	return fmt.Sprintf("publish: %d of %d records failed, %d of them permanently: %v",
		len(e.Failed), e.Total, len(e.Permanent()), e.first())
}

// Unwrap returns the error that Error shows.
func (e *PublishError) Unwrap() error { return e.first() }

func (e *PublishError) first() error {
	var err error
	for _, f := range e.Failed {
		if f.Permanent {
			return f.Err
		}
		if err == nil || errors.Is(err, ErrBehind) {
			err = f.Err
		}
	}
	return err
}

// Permanent returns the indexes of the records that can never be published.
func (e *PublishError) Permanent() []int {
	var permanent []int
	for _, f := range e.Failed {
		if f.Permanent {
			permanent = append(permanent, f.Index)
		}
	}
	return permanent
}

// NewPublishError sorts the failures. It returns nil without failures.
func NewPublishError(failed []FailedRecord, total int) error {
	if len(failed) == 0 {
		return nil
	}
	slices.SortFunc(failed, func(a, b FailedRecord) int { return a.Index - b.Index })
	return &PublishError{Failed: failed, Total: total}
}
