package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/importer"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// maxWait is the longest wait of one read.
const maxWait = 30 * time.Second

// listFor bounds how long an import looks for its events that are not counted.
const listFor = time.Minute

// await waits until every event of the import has its verdict and the figures contain it. It fails with errNo if
// they do not count all events of the file: the validator rejects some, and others are dead letters.
func (c *UsageImport) await(a *app, cl *client.Client, sum *importer.Summary) error {
	cl.RetryFor = c.Wait
	fresh := Fresh{MinPosition: sum.Last(), Wait: min(c.Wait, maxWait)}
	if _, err := fresh.read(a, cl, "/usage/aggregates", url.Values{"limit": {"1"}}, ""); err != nil {
		return fmt.Errorf("wait for the figures: %w", err)
	}
	ctx, cancel := context.WithTimeout(a.ctx, listFor)
	defer cancel()
	counted, lists := sum.Accepted+sum.Duplicates, ""
	for _, status := range notCounted {
		n, err := countOf(ctx, cl, sum, status)
		if err != nil {
			return fmt.Errorf("not known whether all events are counted: list the events that are %s: %w", status, err)
		}
		if n > 0 {
			lists += fmt.Sprintf("\n%d are %s: meterplex usage list --status %s", n, status, status)
		}
		counted -= n
	}
	if counted == sum.Events {
		a.report("All %d events are counted, up to position %s.", sum.Events, output.Printable(sum.Last()))
		return nil
	}
	if refused := sum.Conflicts + sum.Rejected; refused > 0 {
		lists += fmt.Sprintf("\n%d are not recorded: their lines are listed above, at most 20", refused)
	}
	a.report("%d of %d events are counted, up to position %s; %d are NOT counted.%s", counted, sum.Events, output.Printable(sum.Last()), sum.Events-counted, lists)
	return errNo
}

// notCounted are the states of recorded events that no figure contains. An event is PENDING or VALIDATED behind its
// verdict if the retry of its dead letter is in progress.
var notCounted = []string{"REJECTED", "DEAD_LETTERED", "VALIDATED", "PENDING"}

var errBelow = errors.New("the other events are older than the import")

// countOf returns how many of the import's recorded events have a status. The list is newest first.
func countOf(ctx context.Context, cl *client.Client, sum *importer.Summary, status string) (n int64, err error) {
	err = cl.Each(ctx, "/usage/events", url.Values{"status": {status}, "minPosition": {sum.Last()}}, 0, func(raw json.RawMessage) error {
		var row struct{ Position string }
		if err := json.Unmarshal(raw, &row); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		of, below := sum.Recorded(row.Position)
		if below {
			return errBelow
		}
		if of {
			n++
		}
		return nil
	})
	if errors.Is(err, errBelow) {
		err = nil
	}
	return n, err
}
