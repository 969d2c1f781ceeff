package api

import (
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"

	"github.com/meterplex/meterplex/http/auth"
)

// Compressed returns a handler whose answers of a kilobyte and more are compressed by gzip if the client accepts it.
func (t *Site) Compressed(next http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(gzhttp.EnableZstd(false), gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.MinSize(gzhttp.DefaultMinSize))
	t.Faults = append(t.Faults, err)
	if err != nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &compressedAnswer{ResponseWriter: w}
		wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer out.cutOff()
			next.ServeHTTP(w, r)
		})).ServeHTTP(out, r)
	})
}

// Compresses reports whether answers of an operation may be compressed. Ingest and checks are too frequent and their answers too small. A
// stream of events sends each one at once. The length of a compressed answer would help to guess a new key in it beside text of the request.
func (t *Site) Compresses(op *huma.Operation, route *auth.Route) bool {
	if route.Objective != "" {
		return false
	}
	for _, response := range op.Responses {
		for media, content := range response.Content {
			if media == MediaEvents || content.Schema != nil && t.holdsSecret(content.Schema) {
				return false
			}
		}
	}
	return true
}

func (t *Site) holdsSecret(schema *huma.Schema) bool {
	if schema.Ref != "" {
		schema = t.API.OpenAPI().Components.Schemas.SchemaFromRef(schema.Ref)
	}
	return schema != nil && schema.Properties["secret"] != nil
}

// compressedAnswer is an answer below its compression. After a panic it drops the end that the compression would write: a partial answer
// must not look complete.
type compressedAnswer struct {
	http.ResponseWriter
	begun, cut bool
}

// Unwrap lets http.ResponseController find the connection.
func (a *compressedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Flush sends what is written: the compression flushes only through http.Flusher.
func (a *compressedAnswer) Flush() {
	if !a.cut {
		_ = http.NewResponseController(a.ResponseWriter).Flush() // a disconnected client does not need it
	}
}

// cutOff is deferred by the handler.
func (a *compressedAnswer) cutOff() {
	if fault := recover(); fault != nil {
		a.cut = true
		panic(fault)
	}
}

func (a *compressedAnswer) WriteHeader(status int) {
	if a.cut {
		return
	}
	if vary := a.Header()["Vary"]; !a.begun && !slices.Contains(vary, "Accept-Encoding") {
		a.Header()["Vary"] = append(slices.Clone(vary), "Accept-Encoding")
	}
	a.begun = a.begun || status >= http.StatusOK
	a.ResponseWriter.WriteHeader(status)
}

func (a *compressedAnswer) Write(body []byte) (int, error) {
	if a.cut {
		return len(body), nil
	}
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(body)
}
