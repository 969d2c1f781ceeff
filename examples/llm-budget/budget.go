package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Budget holds, commits and releases amounts of one feature of a tenant.
type Budget struct {
	URL     string // of the service, e.g. http://127.0.0.1:8080
	Key     string // a tenant's key with the scope entitlements:reserve
	Feature string
	Client  *http.Client // its Timeout bounds one attempt of a request
}

// Settled is the account after a commit.
type Settled struct {
	Amount    int64  // recorded
	Released  int64  // of the held amount, the part that was not used
	Remaining *int64 // nil: no limit
}

// Hold holds an amount until it is committed or released, or until lasts is over. The error is a *Refusal if the limit does
// not allow the amount. After any other error the amount may be held: the hold ends by itself.
func (b *Budget) Hold(ctx context.Context, id string, amount int64, lasts time.Duration) error {
	var held struct{ State string }
	seconds := int64(lasts / time.Second)
	status, err := b.send(ctx, http.MethodPost, b.path(), map[string]any{"reservationId": id, "amount": amount, "ttlSeconds": seconds}, &held)
	if err == nil && held.State != "HELD" { // the id was used before, and its reservation has ended
		err = fmt.Errorf("the reservation %s is %s", id, held.State)
	}
	if err == nil && status == http.StatusOK { // an earlier attempt holds it, and its time has begun
		_, err = b.send(ctx, http.MethodPost, b.path(id, "extend"), map[string]any{"ttlSeconds": seconds}, nil)
	}
	if err != nil {
		return fmt.Errorf("hold %d %s: %w", amount, b.Feature, err)
	}
	return nil
}

// Commit records the used amount and releases the rest of the hold. The whole amount is recorded also if it is above the hold, because it has
// been used.
func (b *Budget) Commit(ctx context.Context, id string, used int64) (s Settled, err error) {
	_, err = b.send(ctx, http.MethodPost, b.path(id, "commit"), map[string]any{"eventId": id + "-usage", "amount": used, "overage": "record"}, &s)
	if err != nil {
		return Settled{}, fmt.Errorf("commit %d %s: %w", used, b.Feature, err)
	}
	return s, nil
}

// Release ends a hold without usage.
func (b *Budget) Release(ctx context.Context, id string) error {
	if _, err := b.send(ctx, http.MethodDelete, b.path(id), nil, nil); err != nil {
		return fmt.Errorf("release %s: %w", b.Feature, err)
	}
	return nil
}

// path returns the path of the feature's reservations, or of one of them.
func (b *Budget) path(segments ...string) string {
	path := "/api/v1/entitlements/" + url.PathEscape(b.Feature) + "/reservations"
	for _, s := range segments {
		path += "/" + url.PathEscape(s)
	}
	return path
}

// Refusal is a refused request: it held no amount and recorded no usage.
type Refusal struct {
	Status    int    `json:"status"`
	Code      string `json:"code"` // e.g. quota_exceeded; docs/errors.md lists all
	Detail    string `json:"detail"`
	State     string `json:"state"`     // of a reservation that has ended
	Remaining *int64 `json:"remaining"` // of the limit, if it is exceeded
	ResetAt   string `json:"resetAt"`   // "" if the limit is never reset
}

func (r *Refusal) Error() string {
	if r.Code == "quota_exceeded" {
		return fmt.Sprintf("%s: %s remain until %s", r.Code, remaining(r.Remaining), cmp.Or(r.ResetAt, "the limit is raised"))
	}
	return r.Code + ": " + r.Detail
}

const (
	firstWait   = 200 * time.Millisecond
	longestWait = 5 * time.Second
)

// send sends a request until it is answered or ctx ends. After a missing answer, 408, 429 and 5xx it sends the same request again:
// the ids in it make the service execute it once. Any other refusal is final.
func (b *Budget) send(ctx context.Context, method, path string, body, answer any) (status int, err error) {
	var sent []byte
	if body != nil {
		if sent, err = json.Marshal(body); err != nil {
			return 0, err
		}
	}
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		status, after, err := b.once(ctx, method, path, sent, answer)
		again := status == 0 || status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500
		if !again {
			return status, err
		}
		select {
		case <-time.After(after + rand.N(wait)): // random, so that clients that failed together do not retry together
		case <-ctx.Done():
			return 0, fmt.Errorf("the outcome is unknown: %w; the last attempt: %w", ctx.Err(), err)
		}
	}
}

// once sends a request once; status is 0 without an answer. after is the least wait before the next attempt.
func (b *Budget) once(ctx context.Context, method, path string, sent []byte, answer any) (status int, after time.Duration, err error) {
	r, err := http.NewRequestWithContext(ctx, method, b.URL+path, bytes.NewReader(sent))
	if err != nil {
		return 0, 0, err
	}
	r.Header.Set("Authorization", "Bearer "+b.Key)
	if sent != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := b.Client.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	if resp.StatusCode/100 == 2 {
		if answer != nil {
			err = json.Unmarshal(body, answer)
		}
		return resp.StatusCode, 0, err
	}
	refusal := &Refusal{Detail: string(body)}
	_ = json.Unmarshal(body, refusal) // a proxy's answer is no JSON
	refusal.Status = resp.StatusCode
	refusal.Code = cmp.Or(refusal.Code, "http_"+strconv.Itoa(resp.StatusCode))
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return refusal.Status, time.Duration(seconds) * time.Second, refusal
}
