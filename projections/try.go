package projections

import (
	"errors"
	"fmt"
	"strings"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Codes of failures.
const (
	CodeFoldFailed   = "fold_failed"   // the fold returned an error
	CodeFoldPanicked = "fold_panicked" // the fold panicked
	CodeDataRefused  = "data_refused"  // the database refused the fold's output
)

// maxReason bounds the bytes of an error text in a dead letter.
const maxReason = 500

// Try runs the fold of one event. A panic or an error becomes a Failure; a
// *domain.Error keeps its code.
func Try(e events.Envelope, fold func() error) (failure *Failure) {
	defer func() {
		if p := recover(); p != nil {
			failure = &Failure{Event: e, Code: CodeFoldPanicked, Reason: fmt.Sprint(p)}
		}
	}()
	err := fold()
	if err == nil {
		return nil
	}
	if refusal := (*domain.Error)(nil); errors.As(err, &refusal) {
		return &Failure{Event: e, Code: refusal.Code, Reason: refusal.Message}
	}
	return &Failure{Event: e, Code: CodeFoldFailed, Reason: err.Error()}
}

func Bounded(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(reason, "\x00", ""), "")
}
