package operate

import (
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/overview"
)

func (s *handlers) overviewOperations(t *api.Site) {
	operators := []string{commands.ScopeBilling, commands.ScopeAudit, commands.ScopeAdmin}
	t.ServeRaw(api.Operation{Method: http.MethodGet, Path: api.Prefix + "/system/overview", Who: auth.Operator, Scopes: operators,
		ID: "getOverview", Tag: "System",
		Summary: "Show the state of the installation and of this instance",
		Description: "The members of `instance` are counters of the instance that answers; those of `installation` and `attention` are " +
			"the state of the database as the instance last read it for its metrics: " +
			"every 2 s, heads and lags every second while someone streams. The answer itself reads no database. With `Accept: " +
			"text/event-stream` the answer is a stream with an event `overview` " +
			"each second, the first with the history. An instance serves 256 streams; more are refused with 503 `overloaded`."},
		describeOverview, s.overview)
}

func describeOverview(op *huma.Operation, types api.Schemas) {
	live := types.Stream(api.MediaEvents, overview.Overview{})
	live.Example = "event: overview\ndata: " +
		"{\"at\":\"2026-05-26T00:15:44.969137906Z\",\"instance\":{\"id\":\"node-1\",\"perSecond\":{\"accepted\":120,\"duplicates\":1," +
		"\"conflicts\":0,\"rejected\":0}}}\n\n"
	op.Parameters = []*huma.Param{{Name: "history", In: "query", Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"true", "false"}},
		Description: "Include the history, also in an answer that is no stream."}}
	op.Responses["200"] = &huma.Response{
		Description: "The overview; as a stream each event's data is one.",
		Content: map[string]*huma.MediaType{
			api.MediaJSON:   {Schema: types.Of(overview.Overview{})},
			api.MediaEvents: live,
		},
	}
}

// overview answers with the last sample, or streams the samples.
func (s *handlers) overview(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Vary", "Accept")
	if api.Accepts(r.Header["Accept"], api.MediaEvents) {
		return s.streamOverview(w, r)
	}
	show := s.Live.Now
	if r.URL.Query().Get("history") == "true" {
		show = s.Live.Show
	}
	frame, err := show()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", api.MediaJSON)
	w.Header().Set("Content-Length", strconv.Itoa(len(frame.JSON)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(frame.JSON) // a client that has gone asks again
	}
	return nil
}

// streamOverview sends the frame of each second until the client, the key or the instance ends.
func (s *handlers) streamOverview(w http.ResponseWriter, r *http.Request) error {
	viewer, err := s.Live.Watch()
	if err != nil {
		return err
	}
	defer viewer.Close()
	first, err := s.Live.Show()
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
	check := time.NewTicker(api.CheckEvery)
	defer check.Stop()
	for err = l.Event("overview", first.JSON); err == nil; {
		select {
		case <-l.Ctx.Done():
			return nil
		case frame, open := <-viewer.Frames():
			if !open {
				return nil
			}
			err = l.Event("overview", frame.JSON)
		case <-check.C:
			if !l.Alive() {
				return nil
			}
			err = l.Heartbeat()
		}
	}
	return nil
}
