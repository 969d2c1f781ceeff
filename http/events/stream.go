package events

import (
	"bytes"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
)

const MediaNDJSON = "application/x-ndjson"

// logStreams are the long-lived answers with the log. Each reads page by page, and between two pages holds only its connection.
type logStreams struct {
	*handlers
}

// begin returns the stream and a function that ends it, or a problem if too many streams
// are open. page is the memory that it holds as long as it lasts.
func (s *logStreams) begin(w http.ResponseWriter, r *http.Request, page int64) (*api.Stream, func(), error) {
	x := edge.ExchangeOf(r.Context())
	leave, p := s.Edge.OpenStream(x, page)
	if p != nil {
		return nil, nil, p
	}
	l, end := s.Stream(w, x)
	return l, func() { end(); leave() }, nil
}

// appendLine appends the envelope as one line.
func appendLine(l *api.Stream, e *events.Envelope) error {
	line, err := appendLogged(l.Buffer, e, l.X.Tenant != nil)
	if err != nil {
		return err
	}
	if raw := line[len(l.Buffer):]; bytes.IndexByte(raw, '\n') >= 0 { // payloads are written without newlines, but this is not enforced
		copy(raw, bytes.ReplaceAll(raw, []byte{'\n'}, []byte{' '})) // only between tokens: a newline in a string is escaped
	}
	l.Buffer = append(line, '\n')
	return nil
}

type exportRequest struct {
	Wanted
	EventsUpTo
	api.Freshness
	Format string `query:"format" enum:"ndjson,parquet" default:"ndjson" doc:"parquet is not written yet."`
}

// export streams the current log once.
func (s *logStreams) export(w http.ResponseWriter, r *http.Request, in *exportRequest) error {
	if in.Format == "parquet" {
		return problem.New("format_not_supported", "Parquet is not written yet; ndjson, the default, is")
	}
	viewer, filter, after, err := s.wanted(r.Context(), &in.Wanted, in.To)
	if err != nil {
		return err
	}
	wait, err := in.Wait()
	if err == nil {
		err = s.Reads.Events.Await(r.Context(), viewer, filter.TenantID, wait)
	}
	if err != nil {
		return err
	}
	walk, err := s.Reads.Events.Walk(r.Context(), viewer, filter, after)
	if err != nil {
		return err
	}
	l, end, err := s.begin(w, r, edge.PageCost)
	if err != nil {
		return err
	}
	defer end()
	l.Start(MediaNDJSON)
	if r.Method == http.MethodHead {
		return nil
	}
	for !walk.Done() {
		if !l.Alive() || exportPage(l, walk) != nil {
			panic(http.ErrAbortHandler) // the client sees that the answer is incomplete
		}
	}
	return nil
}

func exportPage(l *api.Stream, walk *audit.EventWalk) error {
	list, err := walk.Next(l.Ctx)
	if errors.Is(err, query.ErrOverloaded) {
		l.Pause()
		return nil
	}
	for i := range list {
		if err == nil {
			err = appendLine(l, &list[i])
		}
	}
	if err == nil {
		err = l.Flush()
	}
	if err != nil && l.Ctx.Err() == nil {
		l.Log.WarnContext(l.Ctx, "an export broke off", "request", l.X.ID, "error", err)
	}
	return err
}

type streamRequest struct {
	Wanted
	Last        int    `query:"last" minimum:"1" maximum:"1000" doc:"Begin with so many of the newest."`
	Follow      string `query:"follow" enum:"true,false" default:"true"`
	LastEventID string `header:"Last-Event-ID" doc:"The id of the last event that came; begin after it."`
}

// tail streams new events until the client disconnects.
func (s *logStreams) tail(w http.ResponseWriter, r *http.Request, in *streamRequest) error {
	if in.LastEventID != "" { // a browser repeats the first URL when it reconnects
		in.After, in.Last = in.LastEventID, 0
	}
	viewer, filter, after, err := s.wanted(r.Context(), &in.Wanted, "")
	if err != nil {
		return err
	}
	start := audit.TailStart{Once: in.Follow == "false", Last: in.Last}
	if in.After != "" {
		start.After = &after
	}
	switch {
	case start.After != nil && start.Last > 0:
		return problem.New("parameter_invalid", "after and last both give the place to begin; give one of them")
	case start.After != nil && filter.TenantID == nil && !strings.Contains(in.After, ","):
		return problem.New("position_invalid",
			"after has to name the place in every partition, as ids of this stream do; or name the tenant")
	}
	tail, err := s.Reads.Events.Tail(r.Context(), viewer, filter, start)
	if err != nil {
		return err
	}
	l, end, err := s.begin(w, r, 0)
	if err != nil {
		return err
	}
	defer end()
	l.Start(api.MediaEvents)
	if r.Method != http.MethodHead {
		follow(l, tail, !start.Once)
	}
	return nil
}

// follow sends the existing events, then new ones if on is set.
func follow(l *api.Stream, tail *audit.EventTail, on bool) {
	l.Buffer = append(l.Buffer, "retry: 1000\n\n"...)
	if l.Flush() != nil {
		return
	}
	for l.Alive() {
		list, atEnd, err := tail.Next(l.Ctx)
		refused := errors.Is(err, query.ErrOverloaded)
		if err != nil && !refused || sendPage(l, tail, list) != nil {
			return // a client that reconnects continues from its last id
		}
		if atEnd && !on {
			l.Buffer = append(l.Buffer, ": end\nid: "+tail.Cursor()+"\n\n"...)
			_ = l.Flush() // a client that is gone asks again
			return
		}
		if atEnd || refused {
			l.Pause()
		}
	}
}

// sendPage sends events. After a quiet interval, also one of pages without events, it sends a heartbeat, which moves
// the client's cursor past events that the filter excludes.
func sendPage(l *api.Stream, tail *audit.EventTail, list []events.Envelope) error {
	for i := range list {
		l.Buffer = append(l.Buffer, "id: "+tail.Pass(&list[i])+"\ndata: "...)
		if err := appendLine(l, &list[i]); err != nil {
			return err
		}
		l.Buffer = append(l.Buffer, '\n')
	}
	if len(list) == 0 && l.Quiet() {
		l.Buffer = append(l.Buffer, ": alive\nid: "+tail.Cursor()+"\n\n"...)
	}
	if len(l.Buffer) == 0 {
		return nil
	}
	return l.Flush()
}

func describeExport(op *huma.Operation, types api.Schemas) {
	op.Responses["200"] = &huma.Response{Description: "Each line is an envelope. An answer that breaks off does not have all.",
		Content: map[string]*huma.MediaType{MediaNDJSON: types.Stream(MediaNDJSON, loggedEvent{})}}
}

func describeEventStream(op *huma.Operation, types api.Schemas) {
	op.Responses["200"] = &huma.Response{Description: "Each event's data is an envelope.",
		Content: map[string]*huma.MediaType{api.MediaEvents: types.Stream(api.MediaEvents, loggedEvent{})}}
}
