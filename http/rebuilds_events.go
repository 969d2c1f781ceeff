package http

import (
	"bytes"
	"context"
	"encoding/json"
	nethttp "net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// Times of a stream of events.
const (
	streamEvery     = 500 * time.Millisecond
	streamHeartbeat = 15 * time.Second // proxies drop what says nothing for longer
	streamWrite     = 30 * time.Second // a client that takes nothing for so long is gone
)

const mediaEvents = "text/event-stream"

func describeRebuildEvents(op *huma.Operation, types schemas) {
	op.Parameters = []*huma.Param{rebuildParam()}
	op.Responses["200"] = &huma.Response{
		Description: "Each event's data is the rebuild.",
		Content:     map[string]*huma.MediaType{mediaEvents: {Schema: types.of(rebuild.RebuildStatus{})}},
	}
}

func rebuildParam() *huma.Param {
	return &huma.Param{Name: "rebuildId", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString, Format: "uuid"}}
}

// events is an answer of server-sent events.
type eventStream struct {
	w       nethttp.ResponseWriter
	control *nethttp.ResponseController
}

// streamEvents begins one. Its context ends with the connection, not with the time
// that other requests may take.
func streamEvents(w nethttp.ResponseWriter) *eventStream {
	w.Header().Set("Content-Type", mediaEvents)
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold events back
	w.WriteHeader(nethttp.StatusOK)
	return &eventStream{w, nethttp.NewResponseController(w)}
}

// send writes text and brings it on its way; an error means that nobody listens.
func (e *eventStream) send(text []byte) error {
	// Where the connection has no deadlines, its context alone ends the stream.
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

// watchRebuild looks at the rebuild twice a second, in a transaction each, and holds
// none in between.
func (s *service) watchRebuild(w nethttp.ResponseWriter, r *nethttp.Request) error {
	id, err := idOf(pathValue(r, "rebuildId"), "rebuild_not_found")
	if err != nil {
		return err
	}
	found, err := s.Reads.Rebuilds.Rebuild(r.Context(), id)
	if err != nil {
		return err
	}
	x := exchangeOf(r.Context())
	ctx := x.from.Context()
	stream := streamEvents(w)
	if r.Method == nethttp.MethodHead {
		return nil
	}
	ticker := time.NewTicker(streamEvery)
	defer ticker.Stop()
	var said []byte
	spoke := time.Now()
	for {
		now, err := json.Marshal(found)
		switch {
		case err != nil:
			return err
		case !bytes.Equal(now, said):
			err, said, spoke = stream.event("progress", now), now, time.Now()
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
		case <-s.leaving:
			return nil
		case <-ticker.C:
		}
		if s.authenticate(x.from, x, x.route) != nil {
			return nil // the key was revoked meanwhile
		}
		if next, err := s.look(ctx, found); err == nil {
			found = next
		}
	}
}

// look reads a rebuild again; what cannot be read now is looked at in half a second.
func (s *service) look(ctx context.Context, r rebuild.RebuildStatus) (rebuild.RebuildStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Time)
	defer cancel()
	return s.Reads.Rebuilds.Rebuild(ctx, r.ID)
}

func folding(r *rebuild.RebuildStatus) bool {
	return r.State == domain.RebuildFolding || r.State == domain.RebuildCatchingUp
}
