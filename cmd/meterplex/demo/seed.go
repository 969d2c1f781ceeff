package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/importer"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// patience is how long the demo retries: longer than a broker or a database
// needs to restart.
const patience = 2 * time.Minute

// Features returns the demo's features by their keys.
func Features() map[string]client.Feature {
	return map[string]client.Feature{
		"input_tokens":  {Name: "Input tokens", Type: "METERED", Unit: "tokens"},
		"output_tokens": {Name: "Output tokens", Type: "METERED", Unit: "tokens"},
		"api_calls":     {Name: "API calls", Type: "QUOTA", Unit: "calls"},
		"sso":           {Name: "Single sign-on", Type: "BOOLEAN"},
	}
}

// Plan returns the demo's plan, which grants its features.
func Plan() client.Plan {
	calls := int64(1_000_000)
	return client.Plan{Name: "Demo", Entitlements: []client.Entitlement{
		{Feature: "input_tokens", LimitBehavior: "SOFT", ResetPeriod: "MONTHLY"},
		{Feature: "output_tokens", LimitBehavior: "SOFT", ResetPeriod: "MONTHLY"},
		{Feature: "api_calls", Limit: &calls, LimitBehavior: "HARD", ResetPeriod: "MONTHLY"},
		{Feature: "sso"},
	}}
}

// seed creates the demo's missing resources.
func (d *Demo) seed(ctx context.Context) error {
	d.Report("Creating features, plan, tenant, subscription and key …")
	for key, f := range Features() {
		if _, err := d.operator.Send(ctx, http.MethodPut, client.Path("features", key), nil, f); err != nil {
			return err
		}
	}
	if _, err := d.operator.Send(ctx, http.MethodPut, "/plans/demo", nil, Plan()); err != nil {
		return err
	}
	// The Idempotency-Key makes a second run find the first run's tenant.
	raw, err := d.operator.Post(ctx, "/tenants", "meterplex-demo-tenant", map[string]string{"name": "Demo Inc.", "class": "small"})
	if err != nil {
		return err
	}
	var tenant struct{ ID string }
	if err := json.Unmarshal(raw, &tenant); err != nil || tenant.ID == "" {
		return fmt.Errorf("the new tenant has no id: %s", raw)
	}
	d.tenantID = tenant.ID
	if err := Subscribe(ctx, d.operator, d.tenantID); err != nil {
		return err
	}
	if d.FakeStripe {
		if err := d.bill(ctx); err != nil {
			return err
		}
	}
	return d.findKey(ctx)
}

// historyStart is the start of the demo's subscription. It covers all usage that is imported.
const historyStart = "2020-01-01T00:00:00Z"

// Subscribe subscribes the tenant to the demo's plan, unless it has a subscription.
func Subscribe(ctx context.Context, operator *client.Client, tenantID string) error {
	path, active := client.Path("tenants", tenantID, "subscriptions"), false
	err := operator.Each(ctx, path, nil, 0, func(raw json.RawMessage) error {
		var s struct{ Status string }
		err := json.Unmarshal(raw, &s)
		active = active || s.Status == "ACTIVE" || s.Status == "TRIALING"
		return err
	})
	if err != nil || active {
		return err
	}
	_, err = operator.Post(ctx, path, "", map[string]string{"plan": "demo", "status": "ACTIVE", "startsAt": historyStart})
	return err
}

// findKey reuses the key of the previous run if the service still accepts it, so
// that commands copied from that run keep working.
func (d *Demo) findKey(ctx context.Context) error {
	file := filepath.Join(d.Config.DataDir, "demo", "api-key")
	kept, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the kept key: %w", err)
	}
	if key := strings.TrimSpace(string(kept)); config.IsKey(key) {
		d.tenant = d.clientWith(key)
		_, err := d.tenant.Get(ctx, "/entitlements", nil)
		if p, ok := errors.AsType[*client.Problem](err); !ok || p.Status != http.StatusUnauthorized {
			return err
		}
	}
	raw, err := d.operator.Post(ctx, client.Path("tenants", d.tenantID, "api-keys"), "", map[string]any{
		"name": "demo", "mode": "live",
		"scopes": []string{"usage:write", "usage:read", "entitlements:read", "entitlements:reserve", "events:read"},
	})
	if err != nil {
		return err
	}
	var key struct{ Secret string }
	if err := json.Unmarshal(raw, &key); err != nil || key.Secret == "" {
		return errors.New("the new key came without its secret")
	}
	d.tenant = d.clientWith(key.Secret)
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(key.Secret+"\n"), 0o600))
}

func (d *Demo) clientWith(key string) *client.Client {
	c := d.NewClient(d.at.URL, key)
	c.RetryFor = patience
	return c
}

// importBatch paces the import: the consumers of a service that has just started follow batches of this size, one at a time.
const importBatch = 500

// importTrace imports the trace. The import's name contains the tenant's id: with a
// new database it is a new import, with times shifted to the current time.
func (d *Demo) importTrace(ctx context.Context) error {
	d.Report("Importing an hour of real requests to a language model, moved to now …")
	im := &importer.Importer{
		Client: d.tenant, StateDir: filepath.Join(d.Config.DataDir, "imports"), Now: d.Now, Report: d.Report,
		Progress: d.Stderr, Terminal: output.IsTerminal(d.Stderr),
	}
	sum, err := im.Run(ctx, importer.Job{
		Name:  "demo-" + d.tenantID,
		Open:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(trace)), nil },
		Times: importer.TimesShifted, Batch: importBatch, Concurrency: 1,
		Mapping: importer.Mapping{
			Columns: []importer.ColumnMapping{{Feature: "input_tokens", Column: "ContextTokens"},
				{Feature: "output_tokens", Column: "GeneratedTokens"}},
			TimeColumn: "TIMESTAMP", Zone: time.UTC,
		},
	})
	if err != nil {
		return err
	}
	d.Report("%d rows, %d events: %d accepted, %d known before, %d refused (%.1f s). %s",
		sum.Rows, sum.Events, sum.Accepted, sum.Duplicates, sum.Conflicts+sum.Rejected, sum.Seconds, sum.Remark())
	return nil
}
