package main

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
)

// demoPatience is how long the demo retries: longer than a broker or a database
// needs to restart.
const demoPatience = 2 * time.Minute

func demoFeatures() map[string]featureBody {
	return map[string]featureBody{
		"input_tokens":  {"Input tokens", "METERED", "tokens"},
		"output_tokens": {"Output tokens", "METERED", "tokens"},
		"api_calls":     {"API calls", "QUOTA", "calls"},
		"sso":           {"Single sign-on", "BOOLEAN", ""},
	}
}

func demoPlan() planBody {
	calls := int64(1_000_000)
	return planBody{"Demo", []entitlementBody{
		{Feature: "input_tokens", LimitBehavior: "SOFT", ResetPeriod: "MONTHLY"},
		{Feature: "output_tokens", LimitBehavior: "SOFT", ResetPeriod: "MONTHLY"},
		{Feature: "api_calls", Limit: &calls, LimitBehavior: "HARD", ResetPeriod: "MONTHLY"},
		{Feature: "sso"},
	}}
}

// seed creates the demo's missing resources.
func (d *demo) seed(ctx context.Context) error {
	d.say("Creating features, plan, tenant, subscription and key …")
	for key, f := range demoFeatures() {
		if _, err := d.operator.send(ctx, http.MethodPut, pathOf("features", key), nil, f); err != nil {
			return err
		}
	}
	if _, err := d.operator.send(ctx, http.MethodPut, "/plans/demo", nil, demoPlan()); err != nil {
		return err
	}
	// The Idempotency-Key makes a second run find the first run's tenant.
	raw, err := d.operator.post(ctx, "/tenants", "meterplex-demo-tenant", map[string]string{"name": "Demo Inc.", "class": "small"})
	if err != nil {
		return err
	}
	var tenant struct{ ID string }
	if err := json.Unmarshal(raw, &tenant); err != nil || tenant.ID == "" {
		return fmt.Errorf("the new tenant has no id: %s", raw)
	}
	d.tenantID = tenant.ID
	if err := subscribe(ctx, d.operator, d.tenantID); err != nil {
		return err
	}
	return d.findKey(ctx)
}

// subscribe subscribes the tenant to the demo's plan, unless it has a subscription.
func subscribe(ctx context.Context, operator *client, tenantID string) error {
	path, active := pathOf("tenants", tenantID, "subscriptions"), false
	err := operator.each(ctx, path, nil, 0, func(raw json.RawMessage) error {
		var s struct{ Status string }
		err := json.Unmarshal(raw, &s)
		active = active || s.Status == "ACTIVE" || s.Status == "TRIALING"
		return err
	})
	if err != nil || active {
		return err
	}
	_, err = operator.post(ctx, path, "", map[string]string{"plan": "demo", "status": "ACTIVE"})
	return err
}

// findKey reuses the key of the previous run if the service still accepts it, so
// that commands copied from that run keep working.
func (d *demo) findKey(ctx context.Context) error {
	file := filepath.Join(d.cfg.DataDir, "demo", "api-key")
	kept, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the kept key: %w", err)
	}
	if key := strings.TrimSpace(string(kept)); isKey(key) {
		d.tenant = d.clientWith(key)
		_, err := d.tenant.get(ctx, "/entitlements", nil)
		if p, ok := errors.AsType[*problem](err); !ok || p.Status != http.StatusUnauthorized {
			return err
		}
	}
	raw, err := d.operator.post(ctx, pathOf("tenants", d.tenantID, "api-keys"), "", map[string]any{
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

func (d *demo) clientWith(key string) *client {
	c := d.newClient(d.at.URL, key)
	c.retryFor = demoPatience
	return c
}

// importTrace imports the trace. The import's name contains the tenant's id: with a
// new database it is a new import, with times shifted to the current time.
func (d *demo) importTrace(ctx context.Context) error {
	d.say("Importing an hour of real requests to a language model, moved to now …")
	im := &Importer{
		Client: d.tenant, StateDir: filepath.Join(d.cfg.DataDir, "imports"), Now: d.now, Say: d.say,
		Progress: d.stderr, Terminal: isTerminal(d.stderr),
	}
	sum, err := im.Run(ctx, ImportJob{
		Name:  "demo-" + d.tenantID,
		Open:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(demoTrace)), nil },
		Times: timesShifted, Batch: maxBatch, Concurrency: 4,
		Mapping: Mapping{
			Columns:    []ColumnMapping{{"input_tokens", "ContextTokens"}, {"output_tokens", "GeneratedTokens"}},
			TimeColumn: "TIMESTAMP", Zone: time.UTC,
		},
	})
	if err != nil {
		return err
	}
	d.say("%d rows, %d events: %d accepted, %d known before, %d refused (%.1f s). %s",
		sum.Rows, sum.Events, sum.Accepted, sum.Duplicates, sum.Conflicts+sum.Rejected, sum.Seconds, sum.remark())
	return nil
}
