package projections_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

func TestReasonsAreBoundedText(t *testing.T) {
	const maxReason = 500
	long := projections.Bounded(strings.Repeat("é", 400) + "\x00")
	if len(long) > maxReason || strings.ContainsRune(long, '\x00') || strings.ContainsRune(long, '\uFFFD') {
		t.Errorf("%d bytes: %q", len(long), long)
	}
}

// Follow-ups have the residency of their cause, also after a change of the tenant's.
func TestFollowUpsKeepTheResidencyOfTheirCause(t *testing.T) {
	cause := events.Envelope{TenantID: uuid.UUID{2}, Residency: "eu-central-1"}
	for _, p := range []events.Pending{
		projections.FollowUp(&cause, uuid.UUID{3}, events.UsageValidated, &events.Validated{}, "a consumer"),
		projections.Closing(&cause, uuid.UUID{4}, events.Closed{}, "a consumer"),
	} {
		if p.Residency != cause.Residency {
			t.Errorf("%+v", p)
		}
	}
}

func TestTryKeepsTheCodeOfARefusal(t *testing.T) {
	e := events.Envelope{EventID: uuid.UUID{7}}
	for want, fold := range map[string]func() error{
		"sour":                       func() error { return fmt.Errorf("fold: %w", &domain.Error{Code: "sour", Message: "m"}) },
		projections.CodeFoldFailed:   func() error { return errors.New("x") },
		projections.CodeFoldPanicked: func() error { var list []int; _ = list[len(e.DedupeKey)]; return nil },
	} {
		if f := projections.Try(e, fold); f == nil || f.Code != want || f.Event.EventID != e.EventID || f.Reason == "" {
			t.Errorf("%s: %+v", want, f)
		}
	}
	if projections.Try(e, func() error { return nil }) != nil {
		t.Error("a fold that succeeds has failed")
	}
}
