package http

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// Intervals of an event stream.
const (
	streamEvery     = 500 * time.Millisecond
	streamHeartbeat = 15 * time.Second // proxies close connections that are idle for longer
	streamWrite     = 30 * time.Second // a client that reads no byte for this time is disconnected
)

const mediaEvents = "text/event-stream"

func describeRebuildEvents(op *huma.Operation, types schemas) {
	op.Parameters = []*huma.Param{rebuildParam()}
	op.Responses["200"] = &huma.Response{
		Description: "Each event's data is the rebuild.",
		Content:     map[string]*huma.MediaType{mediaEvents: types.stream(mediaEvents, rebuild.RebuildStatus{})},
	}
}

func rebuildParam() *huma.Param {
	return &huma.Param{Name: "rebuildId", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString, Format: "uuid"}}
}

// eventStream is an answer with server-sent events.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// streamEvents starts a stream. The stream lives as long as its connection and is not
// bound by the request timeout.
func streamEvents(w http.ResponseWriter, x *edge.Exchange) (*eventStream, error) {
	if p := x.Stream(0); p != nil {
		return nil, p
	}
	w.Header().Set("Content-Type", mediaEvents)
	w.Header().Set("X-Accel-Buffering", "no") // else nginx buffers events
	w.WriteHeader(http.StatusOK)
	return &eventStream{w, http.NewResponseController(w)}, nil
}

// send writes and flushes text. An error means that the client is gone.
func (e *eventStream) send(text []byte) error {
	// Without write deadlines, only the connection's context ends the stream.
	_ = e.control.SetWriteDeadline(time.Now().Add(streamWrite))
	if _, err := e.w.Write(text); err != nil {
		return err
	}
	return e.control.Flush()
}

func (e *eventStream) event(name string, data []byte) error {
	return e.send([]byte("event: " + name + "\ndata: " + string(data) + "\n\n"))
}

func (e *eventStream) heartbeat() error { return e.send([]byte(": alive\n\n")) }

// watchRebuild polls the rebuild twice a second. Each poll is its own transaction; no transaction
// is open in between.
func (s *service) watchRebuild(w http.ResponseWriter, r *http.Request) error {
	id, err := idOf(pathValue(r, "rebuildId"), "rebuild_not_found")
	if err != nil {
		return err
	}
	found, err := s.Reads.Rebuilds.Rebuild(r.Context(), id)
	if err != nil {
		return err
	}
	x := edge.ExchangeOf(r.Context())
	ctx := x.From.Context()
	stream, err := streamEvents(w, x)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		return nil
	}
	ticker := time.NewTicker(streamEvery)
	defer ticker.Stop()
	var sent []byte
	spoke := time.Now()
	for {
		now, err := json.Marshal(found)
		switch {
		case err != nil:
			return err
		case !bytes.Equal(now, sent):
			err, sent, spoke = stream.event("progress", now), now, time.Now()
		case time.Since(spoke) >= streamHeartbeat:
			err, spoke = stream.heartbeat(), time.Now()
		}
		if err != nil || !folding(&found) {
			if err == nil {
				_ = stream.event("done", now)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.edge.Shutdown():
			return nil
		case <-ticker.C:
		}
		if s.edge.Authenticate(x.From, x) != nil {
			return nil // the key has been revoked
		}
		if next, err := s.refresh(ctx, found); err == nil {
			found = next
		}
	}
}

// refresh reads a rebuild again. After an error, the next poll tries again half a second
// later.
func (s *service) refresh(ctx context.Context, r rebuild.RebuildStatus) (rebuild.RebuildStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, edge.RequestTime)
	defer cancel()
	return s.Reads.Rebuilds.Rebuild(ctx, r.ID)
}

func folding(r *rebuild.RebuildStatus) bool {
	return r.State == domain.RebuildFolding || r.State == domain.RebuildCatchingUp
}
