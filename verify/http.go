package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// HTTP is the API of a service at an address, by a key with the scope billing. It implements Service.
type HTTP struct {
	ctx       context.Context
	base, key string
}

// NewHTTP returns the API of the service at a URL. Requests end with ctx.
func NewHTTP(ctx context.Context, base, key string) *HTTP {
	return &HTTP{ctx, strings.TrimSuffix(base, "/") + "/api/v1", key}
}

// Identity implements Service.
func (h *HTTP) Identity() (json.RawMessage, error) {
	return h.send(http.MethodGet, "/system/identity", "")
}

// Projections implements Service.
func (h *HTTP) Projections() ([]json.RawMessage, error) {
	raw, err := h.send(http.MethodGet, "/projections", "")
	if err != nil {
		return nil, err
	}
	var page struct{ Data []json.RawMessage }
	if err := json.Unmarshal(raw, &page); err != nil {
		return nil, fmt.Errorf("read the projections: %w", err)
	}
	return page.Data, nil
}

// rebuildGoesOn are the states of a rebuild that has not compared yet.
var rebuildGoesOn = []string{"", "FOLDING", "CATCHING_UP", "READY"}

// VerifyProjection implements Service.
func (h *HTTP) VerifyProjection(name string) (v ProjectionVerify, err error) {
	raw, err := h.send(http.MethodPost, "/projections/"+url.PathEscape(name)+"/verify", `{"reason":"meterplex verify"}`)
	for {
		if err == nil {
			err = json.Unmarshal(raw, &v)
		}
		if err != nil || v.Differs != nil || !slices.Contains(rebuildGoesOn, v.State) {
			return v, err
		}
		select {
		case <-h.ctx.Done():
			return v, h.ctx.Err()
		case <-time.After(time.Second):
		}
		raw, err = h.send(http.MethodGet, "/rebuilds/"+url.PathEscape(v.RebuildID), "")
	}
}

// direct follows no redirect: the key is for the given address alone.
var direct = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// send sends a request and returns the answer's body.
func (h *HTTP) send(method, path, body string) (json.RawMessage, error) {
	r, err := http.NewRequestWithContext(h.ctx, method, h.base+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, fmt.Errorf("the service's address: %w", err)
	}
	r.Header.Set("Authorization", "Bearer "+h.key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", uuid.NewString())
		r.Header.Set("Prefer", "wait=30")
	}
	answer, err := direct.Do(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case answer.StatusCode >= 300:
		return nil, fmt.Errorf("%s: %s: %.500s", path, answer.Status, raw)
	}
	return raw, nil
}
