package edge

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/internal/must"
)

func TestAPanicIsA500AndIsLogged(t *testing.T) {
	var logs bytes.Buffer
	e, err := New(Config{Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	must.OK(t, err)
	boom := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Etag", `"of the page"`)
		panic("the canary")
	})
	w := httptest.NewRecorder()
	e.Handle(boom).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	var p problem.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 500 || p.Code != "internal" ||
		w.Header().Get("Content-Type") != problem.MediaType {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w.Header().Get("Content-Encoding")+w.Header().Get("Etag") != "" {
		t.Errorf("headers of the page: %v", w.Header())
	}
	if strings.Contains(w.Body.String(), "canary") || !strings.Contains(logs.String(), "the canary") ||
		!strings.Contains(logs.String(), w.Header().Get("X-Request-Id")) {
		t.Errorf("told %s, logged %s", w.Body, &logs)
	}
}

// deadlined records the deadlines of writes.
type deadlined struct {
	*httptest.ResponseRecorder
	all []time.Time
}

func (w *deadlined) SetWriteDeadline(t time.Time) error { w.all = append(w.all, t); return nil }

// Requests of one connection share its bandwidth, and a small answer has the time of its request.
func TestPiecesOfALargeAnswerHaveTheTimeOfTheirConnection(t *testing.T) {
	for size, pieces := range map[int]int{1: 0, pieceSize: 0, pieceSize + 1: 2, 4 * pieceSize: 4} {
		r, w := httptest.NewRequest("GET", "/", nil), &deadlined{httptest.NewRecorder(), nil}
		r.ProtoMajor = 2
		x := &Exchange{on: &connection{}}
		x.on.inWork.Store(3)
		a := &answer{ResponseWriter: w, to: r, x: x}
		_, err := a.Write(make([]byte, size))
		must.OK(t, err)
		began := time.Now()
		if !a.send() || w.Body.Len() != size || len(w.all) != pieces {
			t.Errorf("%d of %d bytes with the deadlines %v", w.Body.Len(), size, w.all)
		}
		for _, at := range w.all {
			if at.Before(began.Add(3*pieceTime)) || at.After(time.Now().Add(3*pieceTime)) {
				t.Errorf("of three requests a piece has %s", at.Sub(began))
			}
		}
	}
}

func TestTraceAndRequestIDs(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for header, ok := range map[string]bool{
		good: true, "cc" + good[2:]: true, "ff" + good[2:]: false, strings.ToUpper(good): false, good + "-x": false, good[:54]: false,
		"": false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false, "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
	} {
		if _, got := traceOf([]string{header}); got != ok {
			t.Errorf("%q: %v", header, got)
		}
	}
	if _, ok := traceOf([]string{good, good}); ok {
		t.Error("two traceparents are accepted")
	}
	for id, kept := range map[string]bool{"abc-1_2.3": true, strings.Repeat("a", 128): true, strings.Repeat("a", 129): false, "": false,
		"a b": false, "a\r\nb": false, "ü": false, "<x>": false} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["X-Request-Id"] = []string{id}
		if x := newExchange(r, uuid.New()); (x.ID == id) != kept || !isRequestID(x.ID) {
			t.Errorf("%q became %q", id, x.ID)
		}
	}
}

// FuzzTraceIDs: accepted ids of a client's headers are repeated unchanged, and other
// readers of the header find the same trace.
func FuzzTraceIDs(f *testing.F) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, parent := range []string{good, "", "ff" + good[2:], strings.ToUpper(good), good + "-x", strings.Repeat("0", 55),
		good[:35] + "-0000000000000000-01", "\x00", good[:3] + "g" + good[4:]} {
		f.Add(parent, parent)
	}
	f.Add(good, "<script>")
	f.Fuzz(func(t *testing.T, parent, id string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["Traceparent"], r.Header["X-Request-Id"] = []string{parent}, []string{id}
		x := newExchange(r, uuid.New())
		if trace, ok := traceOf([]string{parent}); ok && (x.trace != trace || x.TraceID() != parent[3:35]) || x.trace == uuid.Nil {
			t.Fatalf("%q is the trace %s", parent, x.TraceID())
		}
		if !isRequestID(x.ID) || isRequestID(id) && x.ID != id || strings.ContainsFunc(x.ID, func(r rune) bool {
			return r > unicode.MaxASCII || unicode.IsControl(r)
		}) {
			t.Fatalf("%q is the request %q", id, x.ID)
		}
	})
}
