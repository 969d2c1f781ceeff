package consume

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// panicking is a handler that panics for each batch.
type panicking struct{}

func (panicking) Apply(context.Context, pgx.Tx, projections.Generation, []events.Envelope) (projections.Result, error) {
	panic("applied")
}

func (panicking) FollowUps(context.Context, projections.Query, []events.InlineStretch, []events.Envelope) (projections.Result, error) {
	panic("an impossible event")
}

// TestP3_AnInlineFoldThatPanicsIsLeftToTheRunner: the panic ends no process, and the event is recorded without a verdict.
func TestP3_AnInlineFoldThatPanicsIsLeftToTheRunner(t *testing.T) {
	var logged strings.Builder
	in := NewInline(projections.Consumer{Name: "validator", Handler: panicking{}}, NewHandover(), nil, nil, slog.New(slog.NewTextHandler(&logged, nil)))
	followUps, ok, err := in.Fold(t.Context(), nil, nil, []events.Envelope{{}})
	if len(followUps) > 0 || ok || err != nil {
		t.Errorf("%v, ok %t, %v", followUps, ok, err)
	}
	for _, want := range []string{"level=ERROR", "consumer=validator", "an impossible event", "FollowUps"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log is without %q: %s", want, logged.String())
		}
	}
}
