package billing

import (
	"context"
	"errors"
	"fmt"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// errNotDue means that the period of a scheduled close is no longer due: its tenant's policy was removed, or it was closed and reopened by
// hand.
var errNotDue = errors.New("the period is no longer due")

// scheduleBatch bounds the periods of one page.
const scheduleBatch = 100

// CloseDue requests the closes that are due by the policies of their tenants, page by page. A close that fails delays no other. Any number
// of instances may call it: the request to close a snapshot has one key.
func (c *Periods) CloseDue(ctx context.Context) (failed error) {
	for last := (domain.Closing{}); ; {
		due, err := c.Store.DueCloses(ctx, last, scheduleBatch)
		if err != nil {
			return errors.Join(failed, err)
		}
		for _, d := range due {
			req := commands.ServiceRequest()
			req.By.CorrelationID = c.NewID() // the trace of the close and its pushes
			_, err := c.Close(ctx, req, ClosePeriod{TenantID: d.TenantID, PeriodKey: d.PeriodKey, Scheduled: true, Seen: d.Snapshot,
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
