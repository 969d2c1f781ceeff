package http

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/internal/must"
)

// compressedBy serves a handler with compression, and returns an answer as it is sent.
func compressedBy(t *testing.T, encoding string, next http.HandlerFunc) (*http.Response, string, error) {
	t.Helper()
	site, err := api.Build(&api.Dependencies{}, operations)
	must.OK(t, err)
	server := httptest.NewServer(site.Compressed(next))
	t.Cleanup(server.Close)
	r, err := http.NewRequest("GET", server.URL, nil)
	must.OK(t, err)
	r.Header.Set("Accept-Encoding", encoding)
	answer, err := server.Client().Do(r)
	must.OK(t, err)
	defer answer.Body.Close()
	body := io.Reader(answer.Body)
	if answer.Header.Get("Content-Encoding") == "gzip" {
		body, err = gzip.NewReader(answer.Body)
		must.OK(t, err)
	}
	text, err := io.ReadAll(body)
	return answer, string(text), err
}

func TestLongAnswersAreCompressedIfTheClientAcceptsIt(t *testing.T) {
	long := strings.Repeat(`{"a":1}`, 10_000)
	for _, c := range []struct {
		accepts, body, want string
	}{{"gzip", long, "gzip"}, {"br, gzip;q=0.5", long, "gzip"}, {"identity", long, ""}, {"gzip;q=0", long, ""}, {"gzip", `{"a":1}`, ""}} {
		answer, body, err := compressedBy(t, c.accepts, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", api.MediaJSON)
			w.Header().Set("Vary", "Accept")
			w.Header().Set("ETag", `"1"`)
			_, _ = io.WriteString(w, c.body)
		})
		got := answer.Header
		if err != nil || body != c.body || got.Get("Content-Encoding") != c.want || got.Get("ETag") != `"1"` ||
			strings.Join(got["Vary"], ", ") != "Accept, Accept-Encoding" {
			t.Errorf("%d bytes for %s: %v, %d bytes, %v", len(c.body), c.accepts, err, len(body), got)
		}
	}
}

// P8: an answer that is cut off looks incomplete to a reader of gzip, too.
func TestP8_ACompressedAnswerThatIsCutLooksIncomplete(t *testing.T) {
	_, body, err := compressedBy(t, "gzip", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat(`{"a":1}`, 10_000))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	if !errors.Is(err, io.ErrUnexpectedEOF) || body == "" {
		t.Errorf("the answer ends after %d bytes with %v", len(body), err)
	}
}

// Secrets, streams of events, ingest and checks are never compressed.
func TestWhichAnswersAreCompressed(t *testing.T) {
	site, err := api.Build(&api.Dependencies{}, operations)
	must.OK(t, err)
	got := map[string]bool{}
	for _, op := range api.OperationsOf(site.API.OpenAPI()) {
		got[op.OperationID] = site.Compresses(op, site.Declared[op.Method+" "+op.Path])
	}
	for id, want := range map[string]bool{"listAggregates": true, "exportEvents": true, "getReceipt": true, "ingestUsage": false,
		"checkEntitlement": false,
		"createKey":        false, "createPortalLink": false,
		"rotateKey": false, "createOperatorKey": false, "createWebhook": false, "rotateWebhook": false,
		"streamEvents": false, "watchRebuild": false} {
		if compresses, known := got[id]; !known || compresses != want {
			t.Errorf("%s: compressed %v, known %v", id, compresses, known)
		}
	}
}
