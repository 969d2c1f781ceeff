package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// tenant is one whose usage is sent.
type tenant struct {
	id        uuid.UUID
	partition int16
	secret    string
}

// tenantCount tenants live in as many log partitions, a like number for each of
// the service's writers (of which each owns the partitions p mod writers): what
// many tenants come to by themselves.
const (
	tenantCount = 16
	writers     = 4
)

// feature is what all usage is of: metered, without a limit, by the month.
const feature = "api_calls"

// api asks the service as an operator or a tenant.
type api struct {
	url, key string
	http     *http.Client
}

// call sends a request and reads the answer into a value, nil for none.
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
	resp, err := a.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the service: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read the service's answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(answer))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("read the service's answer: %w", err)
	}
	return nil
}

// seed makes the catalogue and the tenants.
func seed(ctx context.Context, url, operator string) ([]tenant, error) {
	a := &api{url, operator, http.DefaultClient}
	if err := a.call(ctx, "PUT", "/features/"+feature, map[string]string{"name": "API calls", "type": "METERED"}, nil); err != nil {
		return nil, err
	}
	plan := map[string]any{"name": "Bench", "entitlements": []any{
		map[string]any{"feature": feature, "limit": nil, "limitBehavior": "SOFT", "resetPeriod": "MONTHLY"},
	}}
	if err := a.call(ctx, "PUT", "/plans/bench", plan, nil); err != nil {
		return nil, err
	}
	var tenants []tenant
	taken, share := map[int16]bool{}, map[int16]int{}
	for len(tenants) < tenantCount {
		t, err := a.newTenant(ctx)
		if err != nil {
			return nil, err
		}
		if taken[t.partition] || share[t.partition%writers] == tenantCount/writers {
			continue
		}
		taken[t.partition] = true
		share[t.partition%writers]++
		if err := a.equip(ctx, &t); err != nil {
			return nil, err
		}
		tenants = append(tenants, t)
	}
	return tenants, nil
}

func (a *api) newTenant(ctx context.Context) (tenant, error) {
	var made struct{ ID uuid.UUID }
	err := a.call(ctx, "POST", "/tenants", map[string]string{"name": "Bench", "class": "large"}, &made)
	return tenant{id: made.ID, partition: events.PartitionOf(made.ID)}, err
}

// equip gives a tenant a subscription and a key.
func (a *api) equip(ctx context.Context, t *tenant) error {
	path := "/tenants/" + t.id.String()
	if err := a.call(ctx, "POST", path+"/subscriptions", map[string]string{"plan": "bench", "status": "ACTIVE"}, nil); err != nil {
		return err
	}
	var key struct{ Secret string }
	err := a.call(ctx, "POST", path+"/api-keys", map[string]any{
		"name": "bench", "mode": "live", "scopes": []string{"usage:write", "usage:read"},
	}, &key)
	t.secret = key.Secret
	return err
}
