package tour

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/demo"
	"github.com/meterplex/meterplex/projections"
)

// begin creates the features, the plan, the tenant and its key.
func (t *Tour) begin(ctx context.Context) error {
	t.announce("A tenant sends usage of %s, %d each time, over three months. Four readers ask for its figures without a pause",
		meteredFeature, sentAmount)
	for key, f := range demo.Features() {
		if _, err := t.operator.Send(ctx, http.MethodPut, client.Path("features", key), nil, f); err != nil {
			return err
		}
	}
	if _, err := t.operator.Send(ctx, http.MethodPut, "/plans/demo", nil, demo.Plan()); err != nil {
		return err
	}
	var made struct{ ID, Secret string }
	if err := t.make(ctx, "/tenants", map[string]string{"name": "Tour Inc.", "class": "small"}, &made); err != nil {
		return err
	}
	t.tenantID = made.ID
	if err := demo.Subscribe(ctx, t.operator, t.tenantID); err != nil {
		return err
	}
	scopes := []string{"usage:write", "usage:backfill", "usage:read"}
	if err := t.make(ctx, client.Path("tenants", t.tenantID, "api-keys"), map[string]any{"name": "tour", "mode": "live", "scopes": scopes},
		&made); err != nil {
		return err
	}
	t.tenant = t.client(made.Secret)
	return nil
}

func (t *Tour) make(ctx context.Context, path string, body, into any) error {
	raw, err := t.operator.Post(ctx, path, "", body)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// promoteFault promotes the faulty fold without a diff, then starts traffic and
// readers.
func (t *Tour) promoteFault(ctx context.Context) error {
	t.announce("The release that runs has a fault: it cuts amounts at %d. It was promoted without a diff", cutAt)
	id, err := t.rebuild(ctx, "release with the fault")
	if err != nil {
		return err
	}
	if err := t.do(yes, "projections", "promote", id, "--reason", "without a diff", "--yes"); err != nil {
		return err
	}
	t.traffic(ctx)
	t.read(ctx)
	err = t.until(ctx, "usage was counted", func() (bool, error) { return t.readers.cut.Load() > 20, t.readers.failed() })
	if err != nil {
		return err
	}
	return t.figures()
}

func (t *Tour) figures() error {
	return t.do(yes, "usage", "aggregates", "--tenant", t.tenantID)
}

// rebuild runs a rebuild and returns its id once it is READY.
func (t *Tour) rebuild(ctx context.Context, reason string) (id string, err error) {
	if err := t.do(yes, "projections", "rebuild", projections.ProjectionUsage, "--reason", reason); err != nil {
		return "", err
	}
	var page struct{ Data []struct{ ID, State string } }
	raw, err := t.operator.Get(ctx, "/rebuilds", url.Values{"limit": {"1"}})
	if err == nil {
		err = json.Unmarshal(raw, &page)
	}
	if err != nil || len(page.Data) != 1 || page.Data[0].State != "READY" {
		return "", fmt.Errorf("the rebuild is not READY: %s: %w", raw, err)
	}
	return page.Data[0].ID, nil
}

// fix rebuilds with the fixed fold, then promotes, rolls back and promotes again.
func (t *Tour) fix(ctx context.Context) error {
	t.announce("The figures are rebuilt from the log; the live ones still serve reads")
	id, err := t.rebuild(ctx, "amounts were cut at "+strconv.Itoa(cutAt))
	if err != nil {
		return err
	}
	t.announce("What would change? Exit code 1: they differ; the difference must be the fault alone: %d for each event", sentAmount-cutAt)
	if err := t.do(no, "projections", "diff", id, "--exit-code"); err != nil {
		return err
	}
	if err := t.exactly(ctx, id); err != nil {
		return err
	}
	for _, s := range []struct{ what, verb, reason string }{
		{"It is promoted: one row flips, and readers see the fixed figures", "promote", "amounts are no longer cut"},
		{"It is rolled back: readers see the previous figures", "rollback", "a second look first"},
		{"And it is promoted again", "promote", "looked twice"},
	} {
		t.announce("%s", s.what)
		if err := t.do(yes, "projections", s.verb, id, "--reason", s.reason, "--yes"); err != nil {
			return err
		}
		if err := t.figures(); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond) // lets the readers see the new figures
	}
	return t.conclude(ctx)
}

// exactly checks that the diff consists of exactly the fault's effect.
func (t *Tour) exactly(ctx context.Context, id string) error {
	raw, err := t.operator.Get(ctx, client.Path("rebuilds", id, "diff"), nil)
	if err != nil {
		return err
	}
	var diff struct {
		Data []struct{ Live, Rebuilt, Delta, EventCount int64 }
	}
	if err := json.Unmarshal(raw, &diff); err != nil {
		return fmt.Errorf("read the difference: %w", err)
	}
	events := int64(0)
	for _, d := range diff.Data {
		events += d.EventCount
		if d.Live != d.EventCount*cutAt || d.Rebuilt != d.EventCount*sentAmount || d.Delta != d.Rebuilt-d.Live {
			return fmt.Errorf("the difference is not the fault: %+v", d)
		}
	}
	if len(diff.Data) != 3 || events == 0 {
		return fmt.Errorf("the difference has %d figures of %d events, and should have those of three months", len(diff.Data), events)
	}
	fmt.Fprintf(t.Stdout, "Each of %d events is %d more: the difference is the fault alone.\n", events, sentAmount-cutAt)
	return nil
}

func (t *Tour) conclude(ctx context.Context) error {
	t.announce("The log proves the figures: they are added up once more and compared")
	if err := t.do(yes, "verify"); err != nil {
		return err
	}
	if err := t.readers.failed(); err != nil {
		return err
	}
	fmt.Fprintf(t.Stdout, "\n%d reads while all of this happened: no read failed or saw figures of both (%d saw the faulty ones, %d the "+
		"fixed ones). %d events were sent meanwhile.\n",
		t.readers.count.Load(), t.readers.cut.Load(), t.readers.whole.Load(), t.sent.Load())
	if n := t.readers.refused.Load(); n > 0 {
		fmt.Fprintf(t.Stdout, "%d reads were refused because this machine is busy, and sent again.\n", n)
	}
	if t.readers.cut.Load() == 0 || t.readers.whole.Load() == 0 {
		return fmt.Errorf("no reader saw both of them at their times")
	}
	return nil
}
