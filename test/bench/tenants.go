package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// tenant is a tenant of the load.
type tenant struct {
	id        uuid.UUID
	partition int16
	secret    string
}

// tenantCount tenants have a log partition each, the same number for each of the service's
// writers (each writer owns the partitions p mod writers): the even distribution that many
// tenants have anyway.
const (
	tenantCount = 16
	writers     = 4
)

// feature is the feature of all usage: metered, without a limit, by month.
const feature = "api_calls"

// api is a client of the service as an operator or a tenant.
type api struct {
	url, key string
	http     *http.Client
}

// call sends a request and decodes the answer into a value, unless that is nil.
func (a *api) call(ctx context.Context, method, path string, body, into any, header ...string) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("write a request: %w", err)
	}
	if body == nil {
		raw = nil
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+"/api/v1"+path, bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+a.key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	direct := *a.http
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // the key is for this host alone
	resp, err := direct.Do(req)
	if err != nil {
		return fmt.Errorf("call the service: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read the service's answer: %w", err)
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return &refusal{resp.StatusCode, time.Duration(seconds) * time.Second}
	}
	if resp.StatusCode/100 != 2 {
		return &Answer{method + " " + path, resp.StatusCode, answer}
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("read the service's answer: %w", err)
	}
	return nil
}

// patiently is call, and repeats a request that was refused: other programs of the machine may be busy.
func (a *api) patiently(ctx context.Context, method, path string, body, into any) error {
	for {
		err := a.call(ctx, method, path, body, into)
		refused, ok := isRefusal(err)
		if !ok {
			return err
		}
		if pause(ctx, max(refused.after, refusedPause)); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Answer is an error answer that ends the load.
type Answer struct {
	To     string // the request
	Status int
	Body   []byte // application/problem+json, of this service
}

func (a *Answer) Error() string {
	return fmt.Sprintf("%s: the service answers %d: %.300s", a.To, a.Status, bytes.TrimSpace(a.Body))
}

// tenantSpec describes the tenants of a load.
type tenantSpec struct {
	feature string // lookup key of a feature, which is created
	quota   bool   // it is a QUOTA feature whose HARD limit is not reached, and its keys may hold amounts; else METERED
	tenants int
	spread  bool      // one log partition each, the same number for each writer
	expires time.Time // of their keys; zero: never
	lines   int       // further METERED features, by month; that of the load is then by year
}

// lineFeature is the lookup key of a further feature.
func lineFeature(i int) string { return fmt.Sprintf("line_%02d", i) }

// seed creates the catalogue and the tenants.
func (t *target) seed(ctx context.Context, with tenantSpec) error {
	a := &api{t.urls[0], t.operator, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: seeders}}}
	defer a.http.CloseIdleConnections()
	t.feature = with.feature
	kind, grant := "METERED", map[string]any{"feature": t.feature, "limit": nil, "limitBehavior": "SOFT", "resetPeriod": "MONTHLY"}
	if with.quota {
		kind, grant["limit"], grant["limitBehavior"] = "QUOTA", int64(wideLimit), "HARD"
	}
	if err := a.call(ctx, "PUT", "/features/"+t.feature, map[string]string{"name": "Benchmark", "type": kind}, nil); err != nil {
		return err
	}
	grants := []any{grant}
	for i := range with.lines {
		grant["resetPeriod"] = "ANNUALLY"
		if err := a.call(ctx, "PUT", "/features/"+lineFeature(i), map[string]string{"name": "Benchmark", "type": "METERED"},
			nil); err != nil {
			return err
		}
		grants = append(grants, map[string]any{"feature": lineFeature(i), "limit": nil, "limitBehavior": "SOFT", "resetPeriod": "MONTHLY"})
	}
	plan := map[string]any{"name": "Benchmark", "entitlements": grants}
	if err := a.call(ctx, "PUT", "/plans/"+benchPlan, plan, nil); err != nil {
		return err
	}
	if with.spread {
		return t.spread(ctx, a, with)
	}
	t.tenants = make([]tenant, with.tenants)
	return all(min(seeders, with.tenants), func(i int) (err error) {
		for ; i < len(t.tenants) && err == nil; i += seeders {
			if t.tenants[i], err = a.newTenant(ctx); err == nil {
				err = a.addKey(ctx, &t.tenants[i], with.expires)
			}
		}
		return err
	})
}

const (
	benchPlan = "meterplex_bench"
	// seeders is the number of tenants created at a time.
	seeders = 16
)

func (t *target) spread(ctx context.Context, a *api, with tenantSpec) error {
	taken, share := map[int16]bool{}, map[int16]int{}
	for len(t.tenants) < with.tenants {
		made, err := a.newTenant(ctx)
		if err != nil {
			return err
		}
		if taken[made.partition] || share[made.partition%writers] == with.tenants/writers {
			continue
		}
		taken[made.partition] = true
		share[made.partition%writers]++
		if err := a.addKey(ctx, &made, with.expires); err != nil {
			return err
		}
		t.tenants = append(t.tenants, made)
	}
	return nil
}

func (a *api) newTenant(ctx context.Context) (tenant, error) {
	var made struct{ ID uuid.UUID }
	err := a.patiently(ctx, "POST", "/tenants", map[string]string{"name": "Benchmark", "class": "large"}, &made)
	return tenant{id: made.ID, partition: events.PartitionOf(made.ID)}, err
}

// addKey gives a tenant a subscription and a key.
func (a *api) addKey(ctx context.Context, t *tenant, expires time.Time) error {
	path := "/tenants/" + t.id.String()
	if err := a.patiently(ctx, "POST", path+"/subscriptions", map[string]string{"plan": benchPlan, "status": "ACTIVE"}, nil); err != nil {
		return err
	}
	var err error
	t.secret, err = a.newKey(ctx, t.id, []string{"usage:write", "usage:read", "entitlements:read", "entitlements:reserve"}, expires)
	return err
}

// newKey makes a key of a tenant.
func (a *api) newKey(ctx context.Context, tenant uuid.UUID, scopes []string, expires time.Time) (string, error) {
	wanted := map[string]any{"name": "benchmark", "mode": "live", "scopes": scopes}
	if !expires.IsZero() {
		wanted["expiresAt"] = expires.UTC().Format(time.RFC3339)
	}
	var key struct{ Secret string }
	err := a.patiently(ctx, "POST", "/tenants/"+tenant.String()+"/api-keys", wanted, &key)
	return key.Secret, err
}
