package verify

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestTheKeyFollowsNoRedirect: an answer that sends the request elsewhere is an error.
func TestTheKeyFollowsNoRedirect(t *testing.T) {
	followed := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	defer other.Close()
	service := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer service.Close()
	defer direct.CloseIdleConnections()
	if _, err := NewHTTP(t.Context(), service.URL, "mp_op_secret").Identity(); err == nil || followed {
		t.Errorf("%v; followed: %t", err, followed)
	}
}
