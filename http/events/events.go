// Package events answers the operations of the event log and of the schemas of its events.
package events

import (
	"context"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
)

const eventTag = "Event log"

func (s *handlers) eventOperations(t *api.Site) {
	const path, one = api.Prefix + "/events", api.Prefix + "/events/{event}"
	gone := []int{http.StatusNotFound}
	readers := []string{commands.ScopeEventsRead, commands.ScopeAudit}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Either, Scopes: readers, ID: "listEvents", Tag: eventTag,
		Summary: "List events of the log",
		Description: "Complete envelopes, by partition and position; of one tenant that is the order of the log. A page looks at a " +
			"bounded part of the log: " +
			"it may hold fewer events than the limit, or be empty, and still have a nextCursor. Events recorded meanwhile shift no page.",
		Problems: gone}, s.listEvents)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Either, Scopes: readers, ID: "getEvent", Tag: eventTag,
		Summary:     "Read one event",
		Description: "By its eventId or its position.", Problems: gone}, s.getEvent)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one + "/lineage", Who: auth.Either, Scopes: readers, ID: "getLineage",
		Tag: eventTag, Summary: "Read the causes and effects of an event",
		Description: "A graph by causationId, and from corrected or retracted usage to the event that changes it: causes up to the " +
			"first, effects down to the last.", Problems: gone}, s.lineage)
	streams := &logStreams{s}
	api.ServeWriter(t, api.Operation{Method: http.MethodGet, Path: path + "/export", Who: auth.Either, Scopes: readers, ID: "exportEvents",
		Tag: eventTag, Summary: "Export events",
		Description: "The log as it is now, as NDJSON, by partition and position: each line is an envelope. To go on with an export " +
			"that broke off, send the position of the last whole line as after.",
		Problems: gone}, describeExport, streams.export)
	api.ServeWriter(t, api.Operation{Method: http.MethodGet, Path: path + "/stream", Who: auth.Either, Scopes: readers, ID: "streamEvents",
		Tag: eventTag, Summary: "Follow the log",
		Description: "Server-sent events: the data of each is an envelope, its id the place after it. A client that reconnects with the " +
			"last id (Last-Event-ID) gets each event exactly once.",
		Problems: gone}, describeEventStream, streams.tail)
}

// Wanted holds the query parameters that filter events of the log.
type Wanted struct {
	TenantID      string `query:"tenantId" doc:"One tenant's events; platform: those of no tenant. A tenant's key names it already." example:"platform"`
	Subject       string `query:"subject" doc:"A subject, or a prefix of subjects, e.g. meterplex.usage." example:"meterplex.usage."`
	Stream        string `query:"stream" example:"usage/evt_1"`
	CorrelationID string `query:"correlationId" doc:"A trace: its id in hex, or the correlationId of an event."`
	From          string `query:"from" format:"date-time" doc:"Recorded at this time or later."`
	After         string `query:"after" example:"17-4711"`
}

// EventsUpTo is the end of the time range of a list that ends.
type EventsUpTo struct {
	To string `query:"to" format:"date-time" doc:"Recorded before this time."`
}

// wanted parses the filters and finds the viewer. to is "" for a list without an end.
func (s *handlers) wanted(ctx context.Context, in *Wanted, to string) (v query.Viewer, f audit.EventFilter, after audit.Frontier,
	err error) {
	if v, f.TenantID, err = s.logOf(ctx, in.TenantID); err != nil {
		return v, f, after, err
	}
	if f.From, f.To, err = (api.Between{From: in.From, To: to}).Read(); err != nil {
		return v, f, after, err
	}
	if in.Subject != "" {
		if f.Subjects, err = audit.SubjectsOf(in.Subject); err != nil {
			return v, f, after, err
		}
	}
	if in.Stream != "" {
		if f.Stream, err = audit.ParseStream(in.Stream); err != nil {
			return v, f, after, err
		}
		if f.Stream.NeedsTenant() && f.TenantID == nil {
			return v, f, after, problem.New("parameter_missing", "An eventId is a tenant's own: name the tenant by tenantId")
		}
	}
	if in.CorrelationID != "" {
		if f.CorrelationID, err = uuid.Parse(in.CorrelationID); err != nil || strings.ContainsAny(in.CorrelationID, "{:}") {
			return v, f, after, problem.New("parameter_invalid", "correlationId is the id of a trace, 32 digits in hex")
		}
	}
	if in.After != "" {
		after, err = frontierIn(in.After, f.TenantID)
	}
	return v, f, after, err
}

// frontierIn parses a position or a frontier of the log. For a tenant, it must be in the tenant's partition.
func frontierIn(text string, tenant *uuid.UUID) (audit.Frontier, error) {
	if p, err := events.ParsePosition(text); err == nil && tenant != nil && p.Partition != events.PartitionOf(*tenant) {
		return audit.Frontier{}, &domain.Error{Code: "position_invalid", Message: "after is not a position of this tenant's log"}
	}
	return audit.ParseFrontier(text)
}

// logOf finds the tenant whose log is read, nil for all tenants, and the viewer.
func (s *handlers) logOf(ctx context.Context, named string) (query.Viewer, *uuid.UUID, error) {
	isOperator := edge.ExchangeOf(ctx).Tenant == nil
	if isOperator && named == "" {
		return query.Viewer{Operator: true}, nil, nil
	}
	if isOperator && named == codec.TenantText(events.Platform) {
		return query.Viewer{Operator: true}, new(events.Platform), nil
	}
	viewer, tenant, err := s.Subject(ctx, named)
	return viewer, &tenant, err
}

type eventsRequest struct {
	Wanted
	EventsUpTo
	api.Freshness
	api.Paging
}

func (s *handlers) listEvents(ctx context.Context, in *eventsRequest) (*api.Listed[loggedEvent], error) {
	viewer, filter, after, err := s.wanted(ctx, &in.Wanted, in.To)
	if err != nil {
		return nil, err
	}
	wait, err := in.Wait()
	if err != nil {
		return nil, err
	}
	l := api.List{"events", whose(filter.TenantID), in.Subject, in.Stream, in.CorrelationID, in.From, in.To, in.After}
	_, seen, err := l.Open(in.Cursor)
	if err != nil {
		return nil, err
	}
	if seen != "" {
		passed, err := audit.ParseFrontier(seen)
		if err != nil {
			return nil, api.CursorInvalid()
		}
		after = after.Join(passed)
	}
	if err := s.Reads.Events.Await(ctx, viewer, filter.TenantID, wait); err != nil {
		return nil, err
	}
	found, err := s.Reads.Events.Events(ctx, viewer, audit.LogQuery{EventFilter: filter, After: after, Limit: in.Limit})
	if err != nil {
		return nil, err
	}
	p := api.Page[loggedEvent]{Data: make([]loggedEvent, 0, len(found.Data))}
	for _, e := range found.Data {
		p.Data = append(p.Data, loggedEvent{e, toTenant(ctx)})
	}
	if found.Next != nil {
		p.NextCursor = l.Next(0, found.Next.String())
	}
	return &api.Listed[loggedEvent]{Body: p}, nil
}

func whose(tenant *uuid.UUID) string {
	if tenant == nil {
		return ""
	}
	return tenant.String()
}

// eventRequest names an event. If an operator also names the tenant, the event is found
// faster.
type eventRequest struct {
	TenantID string `query:"tenantId" doc:"Operator keys may name the tenant here: the event is found sooner, and only if it is the tenant's."`
	Event    string `path:"event" doc:"An eventId, or a position." example:"17-4711"`
	api.Freshness
}

func (s *handlers) eventOf(ctx context.Context, in *eventRequest) (v query.Viewer, ref audit.EventRef, tenant *uuid.UUID, err error) {
	if v, tenant, err = s.logOf(ctx, in.TenantID); err != nil {
		return v, ref, tenant, err
	}
	wait, err := in.Wait()
	if err == nil {
		ref, err = audit.ParseEventRef(in.Event)
	}
	if err == nil {
		err = s.Reads.Events.Await(ctx, v, tenant, wait)
	}
	return v, ref, tenant, err
}

func (s *handlers) getEvent(ctx context.Context, in *eventRequest) (*api.Answer[loggedEvent], error) {
	viewer, ref, tenant, err := s.eventOf(ctx, in)
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Events.Event(ctx, viewer, ref, tenant)
	return api.AnswerOf(loggedEvent{found, toTenant(ctx)}, err)
}

func (s *handlers) lineage(ctx context.Context, in *eventRequest) (*api.Answer[audit.Lineage], error) {
	viewer, ref, tenant, err := s.eventOf(ctx, in)
	if err != nil {
		return nil, err
	}
	return api.AnswerOf(s.Reads.Events.Lineage(ctx, viewer, audit.LineageQuery{Ref: ref, TenantID: tenant}))
}

// loggedEvent is an event in its wire format.
type loggedEvent struct {
	events.Envelope
	toTenant bool
}

// MarshalJSON writes the envelope as consumers receive it, or as its tenant reads it.
func (e loggedEvent) MarshalJSON() ([]byte, error) { return appendLogged(nil, &e.Envelope, e.toTenant) }

// toTenant reports whether a tenant's key asks.
func toTenant(ctx context.Context) bool { return edge.ExchangeOf(ctx).Tenant != nil }

func appendLogged(dst []byte, e *events.Envelope, toTenant bool) ([]byte, error) {
	if toTenant {
		return codec.AppendTenantWire(dst, e)
	}
	return codec.AppendWire(dst, e)
}

// Schema implements huma.SchemaProvider.
func (loggedEvent) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[Envelope](), true, "")
}

// Actor documents events.Actor.
type Actor struct {
	Type string `json:"type"`
	ID   string `json:"id,omitempty"`
	Via  string `json:"via,omitempty"`
}

// Envelope documents the output of codec.AppendWire. Tenants read no id of the actor, no producedBy, no idempotencyKey of a call, and
// in payloads of operators' changes no reason, no metadata and no ids of other systems.
type Envelope struct {
	EventID        uuid.UUID        `json:"eventId" doc:"A UUIDv7."`
	EventType      string           `json:"eventType" example:"meterplex.usage.event.recorded"`
	EventVersion   int              `json:"eventVersion"`
	SchemaURI      string           `json:"schemaUri" doc:"The schema of the payload, with its SHA-256."`
	TenantID       string           `json:"tenantId" doc:"platform if it belongs to no tenant."`
	Partition      int16            `json:"partition"`
	Position       events.Position  `json:"position"`
	Epoch          int32            `json:"epoch"`
	CorrelationID  *uuid.UUID       `json:"correlationId" nullable:"true" doc:"The trace."`
	CausationID    *uuid.UUID       `json:"causationId" nullable:"true" doc:"The event that caused it."`
	Actor          Actor            `json:"actor"`
	OccurredAt     time.Time        `json:"occurredAt"`
	RecordedAt     time.Time        `json:"recordedAt"`
	ProducedBy     *events.Producer `json:"producedBy,omitempty" doc:"For operators only."`
	IdempotencyKey string           `json:"idempotencyKey,omitempty"`
	Payload        map[string]any   `json:"payload"`
	Metadata       events.Metadata  `json:"metadata"`
}
