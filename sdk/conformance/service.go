package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// tenant of a trial. The key may write and read usage, and ask and hold limits.
type tenant struct{ id, key string }

// ask makes a request with the operator's key and reads the answer into out, unless out is nil. It repeats a request that an overloaded
// service refuses.
func (s *Service) ask(t testing.TB, method, path string, in, out any, header ...string) {
	t.Helper()
	status, text := s.try(t, method, path, in, header...)
	for end := time.Now().Add(patience); status == http.StatusServiceUnavailable && time.Now().Before(end); {
		time.Sleep(200 * time.Millisecond)
		status, text = s.try(t, method, path, in, header...)
	}
	if status/100 != 2 {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%s %s: %s: %v", method, path, text, err)
	}
}

func (s *Service) try(t testing.TB, method, path string, in any, header ...string) (status int, body []byte) {
	t.Helper()
	var sent bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&sent).Encode(in); err != nil {
			t.Fatal(err)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/api/v1"+path, &sent)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.OperatorKey)
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err = io.ReadAll(answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, body
}

// prepare creates the features and the plan of the tenants.
func (s *Service) prepare(t testing.TB) {
	t.Helper()
	var grants []object
	for feature, grant := range map[string]object{
		"sdk_calls": {"type": "METERED"}, "sdk_bytes": {"type": "METERED"}, "sdk_seconds": {"type": "METERED"},
		"sdk_tokens": {"type": "QUOTA", "limit": 1000}, "sdk_capped": {"type": "QUOTA", "limit": 10, "onIngest": "enforce"},
		"sdk_premium": {"type": "BOOLEAN"},
	} {
		s.ask(t, http.MethodPut, "/features/"+feature, object{"name": feature, "type": grant["type"]}, nil)
		one := object{"feature": feature, "limit": nil, "limitBehavior": "SOFT", "resetPeriod": "MONTHLY"}
		if grant["type"] == "QUOTA" {
			one["limitBehavior"] = "HARD"
		}
		if grant["type"] == "BOOLEAN" {
			one = object{"feature": feature}
		}
		delete(grant, "type")
		maps.Copy(one, grant)
		grants = append(grants, one)
	}
	s.ask(t, http.MethodPut, "/features/sdk_absent", object{"name": "in no plan", "type": "METERED"}, nil)
	s.ask(t, http.MethodPut, "/plans/sdk", object{"name": "Conformance of the SDKs", "entitlements": grants}, nil)
}

func (s *Service) newTenant(t testing.TB) tenant {
	t.Helper()
	x := s.unsubscribed(t)
	s.ask(t, http.MethodPost, "/tenants/"+x.id+"/subscriptions", object{"plan": "sdk", "status": "ACTIVE"}, nil)
	return x
}

func (s *Service) unsubscribed(t testing.TB) tenant {
	t.Helper()
	var made struct{ ID string }
	s.ask(t, http.MethodPost, "/tenants", object{"name": fmt.Sprint("sdk ", rand.Uint64()), "class": "small"}, &made)
	return tenant{made.ID, s.keyOf(t, made.ID, "usage:write", "usage:read", "entitlements:read", "entitlements:reserve")}
}

func (s *Service) keyOf(t testing.TB, tenant string, scopes ...string) string {
	t.Helper()
	var made struct{ Secret string }
	s.ask(t, http.MethodPost, "/tenants/"+tenant+"/api-keys", object{"name": "conformance", "scopes": scopes}, &made)
	return made.Secret
}

// counted is an event in the service's log.
type counted struct {
	EventID, Feature, Status, Position string
	Amount                             int64
}

// log returns the usage events of the trial's tenant, in the order in which they were recorded.
func (x *trial) log() (list []counted) {
	x.Helper()
	for cursor := ""; ; {
		var page struct {
			Data       []counted
			NextCursor string
		}
		query := url.Values{"tenantId": {x.tenant.id}, "limit": {"1000"}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		x.suite.Service.ask(x, http.MethodGet, "/usage/events?"+query.Encode(), nil, &page)
		list = append(list, page.Data...)
		if cursor = page.NextCursor; cursor == "" {
			slices.Reverse(list)
			return list
		}
	}
}

// counts requires that the service has counted exactly these events, each once, in the log and in the figures.
func (x *trial) counts(ids ...string) []counted {
	x.Helper()
	list := x.log()
	var have []string
	for _, e := range list {
		have = append(have, e.EventID)
	}
	x.sameIDs("the service counted", have, ids)
	x.figures(list)
	return list
}

// figures requires that the figures are the sums of the counted events.
func (x *trial) figures(list []counted) {
	x.Helper()
	want, got := map[string][2]int64{}, map[string][2]int64{}
	for _, e := range list {
		want[e.Feature] = [2]int64{want[e.Feature][0] + e.Amount, want[e.Feature][1] + 1}
	}
	if len(list) == 0 {
		return
	}
	var page struct {
		Data []struct {
			Feature            string
			Amount, EventCount int64
		}
	}
	x.suite.Service.ask(x, http.MethodGet, "/usage/aggregates?tenantId="+x.tenant.id+"&minPosition="+list[len(list)-1].Position, nil, &page,
		"Prefer", "wait=30")
	for _, f := range page.Data {
		got[f.Feature] = [2]int64{got[f.Feature][0] + f.Amount, got[f.Feature][1] + f.EventCount}
	}
	if !maps.Equal(got, want) {
		x.Errorf("the figures are %v (amount and number), want %v", got, want)
	}
}

// sameIDs requires two lists to hold the same ids, each once, in any order.
func (x *trial) sameIDs(what string, have, want []string) {
	x.Helper()
	have, want = slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(want))
	if slices.Equal(have, want) {
		return
	}
	var missing, extra []string
	for _, id := range want {
		if !slices.Contains(have, id) {
			missing = append(missing, id)
		}
	}
	for i, id := range have {
		if !slices.Contains(want, id) || i > 0 && have[i-1] == id {
			extra = append(extra, id)
		}
	}
	x.Fatalf("%s %d events, want %d; missing %s; unexpected or twice %s", what, len(have), len(want), some(missing), some(extra))
}

func some(ids []string) string {
	return fmt.Sprintf("%d: %s", len(ids), strings.Join(ids[:min(len(ids), 10)], " "))
}

// inOrder requires that the service recorded events in this order.
func (x *trial) inOrder(list []counted, ids []string) {
	x.Helper()
	var have []string
	for _, e := range list {
		have = append(have, e.EventID)
	}
	if !slices.Equal(have, ids) {
		x.Errorf("the events are recorded in the order %q, want %q", have, ids)
	}
}
