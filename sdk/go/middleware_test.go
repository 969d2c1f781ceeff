package meterplex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// The middleware records each request once it is answered, as its options choose, and leaves the answer as it is.
func TestMiddleware(t *testing.T) {
	s := newService(t)
	c, _ := newClient(t, s, t.TempDir(), nil)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			http.NotFound(w, r)
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/file":
			w.(http.Flusher).Flush()
			_, _ = io.Copy(w, io.LimitReader(os.Stdin, 0))
			_, _ = io.Copy(w, strings.NewReader("file"))
		default:
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(w, "hello")
		}
	})
	each := c.Middleware("api_calls", nil)(handler)
	chosen := c.Middleware("bytes", &MiddlewareOptions{
		Count:    func(s Served) bool { return s.Status < 400 },
		Amount:   func(s Served) int64 { return s.Bytes },
		Metadata: func(s Served) map[string]any { return map[string]any{"path": s.Request.URL.Path} },
		EventID:  func(s Served) string { return "bytes-" + s.Request.URL.Path[1:] },
	})(each)
	web := httptest.NewServer(chosen)
	defer web.Close()
	for _, path := range []string{"hello", "missing", "panic", "file"} {
		if answer, err := http.Get(web.URL + "/" + path); err == nil {
			_ = answer.Body.Close()
		}
	}
	web.Close() // waits for the handlers
	flush(t, c)
	calls := 0
	for _, p := range s.payloads {
		if strings.Contains(p, `"api_calls"`) {
			calls++
		}
	}
	if calls != 3 || len(s.payloads) != 5 || !strings.Contains(s.payloads["bytes-hello"], `"amount":5`) ||
		!strings.Contains(s.payloads["bytes-file"], `"amount":4`) ||
		!strings.Contains(s.payloads["bytes-file"], `"metadata":{"path":"/file"}`) {
		t.Errorf("%v", s.payloads)
	}
}

// Usage that cannot be recorded is reported, and the request is served.
func TestMiddlewareReportsWhatItCannotRecord(t *testing.T) {
	c, got := newClient(t, newService(t), t.TempDir(), nil)
	handler := c.Middleware("API", nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 204 || fmt.Sprint(got.codes()) != "[feature_invalid]" {
		t.Errorf("%d %v", w.Code, got.codes())
	}
}

// The tokens of a call are recorded, also if it fails or its caller has given up.
func TestLLM(t *testing.T) {
	s := newService(t)
	c, _ := newClient(t, s, t.TempDir(), nil)
	llm := LLM{Client: c, Input: "input_tokens", Output: "output_tokens", Metadata: map[string]any{"model": "m"}}
	failed := errors.New("failed")
	for id, used := range map[string]Tokens{"a": {3, 4}, "b": {5, 0}, "c": {}, "": {1, 1}} {
		ctx, cancel := context.WithCancel(t.Context())
		err := llm.Call(ctx, id, func(context.Context) (Tokens, error) {
			cancel()
			return used, failed
		})
		if err != failed {
			t.Error(err)
		}
	}
	flush(t, c)
	if len(s.payloads) != 5 || !strings.Contains(s.payloads["a-input"],
		`"amount":3,"eventId":"a-input","feature":"input_tokens","metadata":{"model":"m"}`) ||
		!strings.Contains(s.payloads["a-output"], `"amount":4`) || !strings.Contains(s.payloads["b-input"], `"amount":5`) {
		t.Errorf("%v", s.payloads)
	}
	c.Close(t.Context())
	if err := llm.Call(t.Context(), "d", func(context.Context) (Tokens, error) { return Tokens{1, 1}, nil }); code(err) != "closed" {
		t.Error(err)
	}
}
