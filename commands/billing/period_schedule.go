package billing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// Schedule closes periods by the policies of their tenants. Any number of instances may run it: the request to close a snapshot has one
// key.
type Schedule struct {
	Periods *Periods
	Logger  *slog.Logger
	Every   time.Duration // 0: a minute
}

// errNotDue means that the period of a scheduled close is no longer due: its tenant's policy was removed, or it was closed and reopened by
// hand.
var errNotDue = errors.New("the period is no longer due")

// scheduleBatch bounds the periods of one look.
const scheduleBatch = 100

// Run requests closes that are due until ctx ends. After a failure it tries again at the next look.
func (s *Schedule) Run(ctx context.Context) error {
	return commands.RunEvery(ctx, cmp.Or(s.Every, time.Minute), s.Logger, "cannot close periods that are due; will retry", s.look)
}

// look requests the closes that are due, page by page. A close that fails delays no other.
func (s *Schedule) look(ctx context.Context) (failed error) {
	for last := (domain.Closing{}); ; {
		due, err := s.Periods.Store.DueCloses(ctx, last, scheduleBatch)
		if err != nil {
			return errors.Join(failed, err)
		}
		for _, d := range due {
			req := commands.ServiceRequest()
			req.By.CorrelationID = s.Periods.NewID() // the trace of the close and its pushes
			_, err := s.Periods.Close(ctx, req, ClosePeriod{TenantID: d.TenantID, PeriodKey: d.PeriodKey, Scheduled: true, Seen: d.Snapshot,
				Reason: "closeAfterHours of the tenant"})
			if err != nil && !errors.Is(err, errNotDue) {
				failed = errors.Join(failed, fmt.Errorf("closing %s of tenant %s: %w", d.PeriodKey, d.TenantID, err))
			}
		}
		if len(due) < scheduleBatch || ctx.Err() != nil {
			return failed
		}
		last = due[len(due)-1]
	}
}
