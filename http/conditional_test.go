package http

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestPreferenceForWaiting(t *testing.T) {
	for prefer, want := range map[string]time.Duration{
		"": 0, "wait=10": 10 * time.Second, "WAIT=1": time.Second, "respond-async, wait=5": 5 * time.Second, "wait = 7": 7 * time.Second, `wait="3"`: 3 * time.Second,
		"wait=3; foo=bar": 3 * time.Second, "wait=30": maxWait, "wait=31": maxWait, "wait=2147483647": maxWait, "wait=99999999999999999999": 0, "wait=-1": 0, "wait": 0, "wait=1.5": 0, "waiting=5": 0,
	} {
		if got := preferredWait(prefer); got != want {
			t.Errorf("%q: %s instead of %s", prefer, got, want)
		}
	}
}

func TestEntityTagsCompareWeakly(t *testing.T) {
	tag := entityTag([]byte(`{"allowed":true`))
	if !strings.HasPrefix(tag, `W/"`) || tag == entityTag([]byte(`{"allowed":false`)) {
		t.Errorf("%s", tag)
	}
	for header, want := range map[string]bool{tag: true, tag[2:]: true, "*": true, `"x", ` + tag: true, `"x"`: false, "": false, tag + "x": false} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("If-None-Match", header)
		if unchanged(r, tag) != want {
			t.Errorf("%q: %v", header, !want)
		}
	}
}
