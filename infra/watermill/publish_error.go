package watermill

import (
	"errors"
	"fmt"
	"slices"
)

// ErrUnknownTopic says that a topic is not in the registry and was refused.
var ErrUnknownTopic = errors.New("the topic is not in the registry")

// ErrTooLarge says that a record is larger than the pipe takes.
var ErrTooLarge = errors.New("the record is too large")

// ErrBehind says that a record was not sent because one before it on its
// partition could not be: records are first seen in their order.
var ErrBehind = errors.New("not sent: a record before it on the partition failed")

// ErrClosed says that the publisher or subscriber was closed.
var ErrClosed = errors.New("closed")

// FailedRecord is a record of a publish call that is not known to be stored.
type FailedRecord struct {
	Index int // in the call's records
	// Permanent: this record alone can never be published as it is. All others
	// are to be sent again; some of them may be stored already.
	Permanent bool
	Err       error
}

// PublishError says which records of a call failed; the others are stored.
type PublishError struct {
	Failed []FailedRecord // by Index, ascending
	Total  int            // records in the call
}

// Error names the first permanent failure, else the first one that says more
// than that something before it failed.
func (e *PublishError) Error() string {
	return fmt.Sprintf("publish: %d of %d records failed, %d of them for good: %v",
		len(e.Failed), e.Total, len(e.Permanent()), e.first())
}

// Unwrap gives the error that Error shows.
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

// Permanent lists the indexes of the records that can never be published.
func (e *PublishError) Permanent() []int {
	var permanent []int
	for _, f := range e.Failed {
		if f.Permanent {
			permanent = append(permanent, f.Index)
		}
	}
	return permanent
}

// NewPublishError orders the failures; nil where there are none.
func NewPublishError(failed []FailedRecord, total int) error {
	if len(failed) == 0 {
		return nil
	}
	slices.SortFunc(failed, func(a, b FailedRecord) int { return a.Index - b.Index })
	return &PublishError{Failed: failed, Total: total}
}
