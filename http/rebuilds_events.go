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

// streamEvery is how often a rebuild is read for a stream.
const streamEvery = 500 * time.Millisecond

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

// watchRebuild polls the rebuild twice a second. Each poll is its own transaction; no transaction
// is open in between.
func (s *repairHandlers) watchRebuild(w http.ResponseWriter, r *http.Request) error {
	id, err := idOf(pathValue(r, "rebuildId"), "rebuild_not_found")
	if err != nil {
		return err
	}
	found, err := s.Reads.Rebuilds.Rebuild(r.Context(), id)
	if err != nil {
		return err
	}
	x := edge.ExchangeOf(r.Context())
	if p := x.Stream(0); p != nil {
		return p
	}
	l, end := s.stream(w, x)
	defer end()
	l.start(mediaEvents)
	if r.Method == http.MethodHead {
		return nil
	}
	ticker := time.NewTicker(streamEvery)
	defer ticker.Stop()
	for sent := []byte(nil); ; {
		now, err := json.Marshal(found)
		if err != nil {
			return err
		}
		if bytes.Equal(now, sent) {
			err = l.heartbeat()
		} else {
			err, sent = l.event("progress", now), now
		}
		if err == nil && !folding(&found) {
			_ = l.event("done", now)
		}
		if err != nil || !folding(&found) {
			return nil
		}
		select {
		case <-l.ctx.Done():
		case <-ticker.C:
		}
		if !l.alive() {
			return nil
		}
		if next, err := s.refresh(l.ctx, found); err == nil {
			found = next
		}
	}
}

// refresh reads a rebuild again. After an error, the next poll tries again half a second
// later.
func (s *repairHandlers) refresh(ctx context.Context, r rebuild.RebuildStatus) (rebuild.RebuildStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, edge.RequestTime)
	defer cancel()
	return s.Reads.Rebuilds.Rebuild(ctx, r.ID)
}

func folding(r *rebuild.RebuildStatus) bool {
	return r.State == domain.RebuildFolding || r.State == domain.RebuildCatchingUp
}
