package repair

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// streamEvery is how often a rebuild is read for a stream.
const streamEvery = 500 * time.Millisecond

func describeRebuildEvents(op *huma.Operation, types api.Schemas) {
	op.Responses["200"] = &huma.Response{
		Description: "Each event's data is the rebuild.",
		Content:     map[string]*huma.MediaType{api.MediaEvents: types.Stream(api.MediaEvents, rebuild.RebuildStatus{})},
	}
}

// watchRebuild polls the rebuild twice a second. Each poll is its own transaction; no transaction
// is open in between.
func (s *handlers) watchRebuild(w http.ResponseWriter, r *http.Request, in *struct{ RebuildPath }) error {
	id, err := in.id()
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
	l, end := s.Stream(w, x)
	defer end()
	l.Start(api.MediaEvents)
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
			err = l.Heartbeat()
		} else {
			err, sent = l.Event("progress", now), now
		}
		if err == nil && !folding(&found) {
			_ = l.Event("done", now)
		}
		if err != nil || !folding(&found) {
			return nil
		}
		select {
		case <-l.Ctx.Done():
		case <-ticker.C:
		}
		if !l.Alive() {
			return nil
		}
		if next, err := s.refresh(l.Ctx, found); err == nil {
			found = next
		}
	}
}

// refresh reads a rebuild again. After an error, the next poll tries again half a second
// later.
func (s *handlers) refresh(ctx context.Context, r rebuild.RebuildStatus) (rebuild.RebuildStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, edge.RequestTime)
	defer cancel()
	return s.Reads.Rebuilds.Rebuild(ctx, r.ID)
}

func folding(r *rebuild.RebuildStatus) bool {
	return r.State == domain.RebuildFolding || r.State == domain.RebuildCatchingUp
}
