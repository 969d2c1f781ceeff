package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
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
func (c *Import) await(a *app.App, sum *importer.Summary) error {
	counted, lists, up := sum.Accepted+sum.Duplicates, "", ""
	for _, to := range sum.Recipients {
		if to.Last() == "" {
			continue
		}
		up = ", up to position " + output.Printable(to.Last())
		n, list, err := c.awaitTenant(a, to)
		if err != nil {
			return err
		}
		counted, lists = counted-n, lists+list
	}
	if len(sum.Recipients) > 1 {
		up = fmt.Sprintf(" of %d tenants", len(sum.Recipients))
	}
	if counted == sum.Events {
		a.Report("All %d events are counted%s.", sum.Events, up)
		return nil
	}
	if refused := sum.Conflicts + sum.Rejected; refused > 0 {
		lists += fmt.Sprintf("\n%d are not recorded: their lines are listed above, at most 20", refused)
	}
	a.Report("%d of %d events are counted%s; %d are NOT counted.%s", counted, sum.Events, up, sum.Events-counted, lists)
	return app.ErrNo
}

// awaitTenant returns how many of a tenant's events are not counted, and how to list them.
func (c *Import) awaitTenant(a *app.App, to *importer.Recipient) (count int64, lists string, err error) {
	to.Client.RetryFor = c.Wait
	r := client.Request{Method: http.MethodGet, Path: "/usage/aggregates", Query: url.Values{"limit": {"1"}}}
	fresh := app.Fresh{MinPosition: to.Last(), Wait: min(c.Wait, maxWait)}
	fresh.Add(&r)
	if _, err := to.Client.Do(a.Ctx, r); err != nil {
		return 0, "", fmt.Errorf("wait for the figures: %w", err)
	}
	ctx, cancel := context.WithTimeout(a.Ctx, listFor)
	defer cancel()
	for _, status := range notCounted {
		n, err := countOf(ctx, to, status)
		if err != nil {
			return 0, "", fmt.Errorf("not known whether all events are counted: list the events that are %s: %w", status, err)
		}
		if n > 0 {
			lists += fmt.Sprintf("\n%d%s are %s: meterplex usage list --status %s", n, to.Name(), status, status)
		}
		count += n
	}
	return count, lists, nil
}

// notCounted are the states of recorded events that no figure contains. An event is PENDING or VALIDATED behind its
// verdict if the retry of its dead letter is in progress.
var notCounted = []string{"REJECTED", "DEAD_LETTERED", "VALIDATED", "PENDING"}

var errBelow = errors.New("the other events are older than the import")

// countOf returns how many of the import's recorded events have a status. The list is newest first.
func countOf(ctx context.Context, to *importer.Recipient, status string) (n int64, err error) {
	err = to.Client.Each(ctx, "/usage/events", url.Values{"status": {status}, "minPosition": {to.Last()}}, 0,
		func(raw json.RawMessage) error {
			var row struct{ Position string }
			if err := json.Unmarshal(raw, &row); err != nil {
				return fmt.Errorf("read an event: %w", err)
			}
			of, below := to.Recorded(row.Position)
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
