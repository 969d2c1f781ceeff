package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Used tokens must be recorded: a commit that is answered 408, 429 or 503 is sent again.
func TestACommitIsSentAgainUntilItIsAnswered(t *testing.T) {
	for _, status := range []int{http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		requests := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if requests++; requests == 1 {
				w.WriteHeader(status)
				return
			}
			_, _ = w.Write([]byte(`{"amount":7,"released":3}`))
		}))
		defer s.Close()
		b := Budget{URL: s.URL, Feature: "tokens", Client: s.Client()}
		if settled, err := b.Commit(t.Context(), "r1", 7); err != nil || settled.Amount != 7 || requests != 2 {
			t.Errorf("%d: %+v after %d requests: %v", status, settled, requests, err)
		}
	}
}
