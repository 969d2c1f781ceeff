package http

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/query"
)

func (s *repairHandlers) deadLetterOperations(t *site) {
	const path, one = prefix + "/dead-letters", prefix + "/dead-letters/{deadLetterId}"
	gone := http.StatusNotFound
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: readers, id: "listDeadLetters", tag: "Dead letters", summary: "List dead letters",
		description: "Newest first, without payloads.", problems: []int{gone}}, s.listDeadLetters)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Operator, scopes: readers, id: "getDeadLetter", tag: "Dead letters", summary: "Read a dead letter", description: "With the payload of the event, and its place on the broker.",
		problems: []int{gone}}, s.getDeadLetter)
	serve(t, operation{method: http.MethodPost, path: one + "/retry", who: auth.Operator, scopes: deciders, id: "retryDeadLetter", tag: "Dead letters", status: http.StatusAccepted,
		summary:     "Retry a dead letter",
		description: "Appends a new event that takes the way of the old one. Whatever is retried, the producer's eventId counts at most once.",
		problems:    []int{gone}}, s.retryDeadLetter)
	serve(t, operation{method: http.MethodPost, path: one + "/discard", who: auth.Operator, scopes: deciders, id: "discardDeadLetter", tag: "Dead letters",
		summary:     "Discard a dead letter",
		description: "Closes a FAILED one for good: its event is never counted, in rebuilds too.",
		problems:    []int{gone}}, s.discardDeadLetter)
	s.bulkDeadLetterOperations(t)
}

// DeadLetterFilters are the filters of lists of dead letters.
type DeadLetterFilters struct {
	OfTenant
	Freshness
	Between
	Status      string `query:"status" enum:"FAILED,RETRYING,RESOLVED,DISCARDED"`
	Stage       string `query:"stage" enum:"INGESTION,PUBLISHING,VALIDATION,AGGREGATION"`
	Reason      string `query:"reason" doc:"The code of the failure." example:"feature_not_found"`
	Fingerprint string `query:"fingerprint" doc:"Of one cause, as a group or a dead letter has it."`
	Feature     string `query:"feature"`
	Consumer    string `query:"consumer" doc:"The consumer that failed." example:"meterplex-usage-aggregator"`
	Topic       string `query:"topic" doc:"The failed event's topic." example:"usage.validated"`
}

type deadLettersRequest struct {
	DeadLetterFilters
	Paging
}

// deadLetterQuery converts filters to a query of the projection.
func (s *repairHandlers) deadLetterQuery(ctx context.Context, in *DeadLetterFilters) (q deadletters.DeadLetterQuery, err error) {
	q.DeadLetterFilter = events.DeadLetterFilter{Status: in.Status, Stage: in.Stage, Reason: in.Reason, Fingerprint: in.Fingerprint,
		Feature: in.Feature, Consumer: in.Consumer, Topic: in.Topic}
	if q.TenantID, err = s.optionalTenant(ctx, in.TenantID); err != nil {
		return q, err
	}
	if q.From, q.To, err = in.read(); err != nil {
		return q, err
	}
	q.Wait, err = in.wait()
	return q, err
}

// list identifies the list of a cursor with these filters.
func (in *DeadLetterFilters) list(name string) list {
	return list{name, in.TenantID, in.Status, in.Stage, in.Reason, in.Fingerprint, in.Feature, in.Consumer, in.Topic, in.From, in.To}
}

// opened returns the query of a page and the list that its cursors belong to.
func (s *repairHandlers) opened(ctx context.Context, in *deadLettersRequest, name string) (q deadletters.DeadLetterQuery, l list, err error) {
	if q, err = s.deadLetterQuery(ctx, &in.DeadLetterFilters); err != nil {
		return q, l, err
	}
	q.Limit, l = in.Limit, in.list(name)
	_, q.After, err = l.open(in.Cursor)
	return q, l, err
}

func (s *repairHandlers) listDeadLetters(ctx context.Context, in *deadLettersRequest) (*listed[deadletters.DeadLetter], error) {
	q, l, err := s.opened(ctx, in, "dead letters")
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.DeadLetters.DeadLetters(ctx, query.Viewer{Operator: true}, q)
	return &listed[deadletters.DeadLetter]{listedFrom(l, found)}, err
}

type DeadLetterPath struct {
	DeadLetterID string `path:"deadLetterId" format:"uuid"`
}

type deadLetterAnswer struct{ Body deadletters.DeadLetter }

type deadLetterRequest struct {
	DeadLetterPath
	Freshness
}

func (s *repairHandlers) getDeadLetter(ctx context.Context, in *deadLetterRequest) (*deadLetterAnswer, error) {
	wait, err := in.wait()
	if err != nil {
		return nil, err
	}
	found, err := s.deadLetter(ctx, in.DeadLetterID, wait)
	return &deadLetterAnswer{found}, err
}

func (s *repairHandlers) deadLetter(ctx context.Context, text string, wait query.Wait) (deadletters.DeadLetter, error) {
	id, err := idOf(text, "not_found")
	if err != nil {
		return deadletters.DeadLetter{}, err
	}
	return s.Reads.DeadLetters.DeadLetterAt(ctx, query.Viewer{Operator: true}, id, wait)
}

type retryRequest struct {
	DeadLetterPath
	Idempotent
	Body *struct {
		Reason string `json:"reason,omitempty" maxLength:"500" doc:"The reason, recorded in the log with the request."`
	} `nameHint:"Retry"`
}

type retryAnswer struct {
	Location string `header:"Location" doc:"The dead letter, whose status is the outcome."`
	Body     struct {
		DeadLetterID uuid.UUID       `json:"deadLetterId" format:"uuid"`
		Position     events.Position `json:"position" doc:"Of the request in the log."`
	} `nameHint:"RetryRequested"`
}

func (s *repairHandlers) retryDeadLetter(ctx context.Context, in *retryRequest) (*retryAnswer, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	letter, err := s.deadLetter(ctx, in.DeadLetterID, query.Wait{})
	if err != nil {
		return nil, err
	}
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	position, err := s.Letters.RequestRetry(ctx, edge.ExchangeOf(ctx).Request(once), letter.ID, letter.TenantID, reason)
	answer := &retryAnswer{Location: prefix + "/dead-letters/" + letter.ID.String()}
	answer.Body.DeadLetterID, answer.Body.Position = letter.ID, position
	return answer, err
}

type discardRequest struct {
	DeadLetterPath
	Idempotent
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
	} `nameHint:"Discard"`
}

type discardAnswer struct{ Body repair.Discarded }

func (s *repairHandlers) discardDeadLetter(ctx context.Context, in *discardRequest) (*discardAnswer, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	letter, err := s.deadLetter(ctx, in.DeadLetterID, query.Wait{})
	if err != nil {
		return nil, err
	}
	done, err := s.Letters.Discard(ctx, edge.ExchangeOf(ctx).Request(once), letter.ID, letter.TenantID, in.Body.Reason)
	return &discardAnswer{done}, err
}
