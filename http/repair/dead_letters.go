// Package repair answers the operations for failures and repeated folds: dead letters, replays, rebuilds and the outbox.
package repair

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/query"
)

func (s *handlers) deadLetterOperations(t *api.Site) {
	const path, one = api.Prefix + "/dead-letters", api.Prefix + "/dead-letters/{deadLetterId}"
	gone := http.StatusNotFound
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: readers, ID: "listDeadLetters",
		Tag: "Dead letters", Summary: "List dead letters",
		Description: "Newest first, without payloads.", Problems: []int{gone}}, s.listDeadLetters)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: readers, ID: "getDeadLetter",
		Tag: "Dead letters", Summary: "Read a dead letter", Description: "With the payload of the event, and its place on the broker.",
		Problems: []int{gone}}, s.getDeadLetter)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/retry", Who: auth.Operator, Scopes: deciders, ID: "retryDeadLetter",
		Tag: "Dead letters", Status: http.StatusAccepted,
		Summary: "Retry a dead letter",
		Description: "Appends a new event that takes the way of the old one. Whatever is retried, the producer's eventId counts " +
			"at most once.",
		Problems: []int{gone}}, s.retryDeadLetter)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/discard", Who: auth.Operator, Scopes: deciders,
		ID: "discardDeadLetter", Tag: "Dead letters",
		Summary:     "Discard a dead letter",
		Description: "Closes a FAILED one for good: its event is never counted, in rebuilds too.",
		Problems:    []int{gone}}, s.discardDeadLetter)
	s.bulkDeadLetterOperations(t)
}

// DeadLetterFilters are the filters of lists of dead letters.
type DeadLetterFilters struct {
	api.OfTenant
	api.Freshness
	api.Between
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
	api.Paging
}

// deadLetterQuery converts filters to a query of the projection.
func (s *handlers) deadLetterQuery(ctx context.Context, in *DeadLetterFilters) (q deadletters.Query, err error) {
	q.DeadLetterFilter = events.DeadLetterFilter{Status: in.Status, Stage: in.Stage, Reason: in.Reason, Fingerprint: in.Fingerprint,
		Feature: in.Feature, Consumer: in.Consumer, Topic: in.Topic}
	if q.TenantID, err = s.OptionalTenant(ctx, in.TenantID); err != nil {
		return q, err
	}
	if q.From, q.To, err = in.Read(); err != nil {
		return q, err
	}
	q.Wait, err = in.Wait()
	return q, err
}

// list identifies the list of a cursor with these filters.
func (in *DeadLetterFilters) list(name string) api.List {
	return api.List{name, in.TenantID, in.Status, in.Stage, in.Reason, in.Fingerprint, in.Feature, in.Consumer, in.Topic, in.From, in.To}
}

func (s *handlers) listDeadLetters(ctx context.Context, in *deadLettersRequest) (*api.Listed[deadletters.DeadLetter], error) {
	q, err := s.deadLetterQuery(ctx, &in.DeadLetterFilters)
	if err != nil {
		return nil, err
	}
	return api.ListRead(in.list("dead letters"), in.Paging, func(limit int, after string) (query.Page[deadletters.DeadLetter], error) {
		q.Limit, q.After = limit, after
		return s.Reads.DeadLetters.DeadLetters(ctx, query.Viewer{Operator: true}, q)
	})
}

type DeadLetterPath struct {
	DeadLetterID string `path:"deadLetterId" format:"uuid"`
}

type deadLetterRequest struct {
	DeadLetterPath
	api.Freshness
}

func (s *handlers) getDeadLetter(ctx context.Context, in *deadLetterRequest) (*api.Answer[deadletters.DeadLetter], error) {
	wait, err := in.Wait()
	if err != nil {
		return nil, err
	}
	return api.AnswerOf(s.deadLetter(ctx, in.DeadLetterID, wait))
}

func (s *handlers) deadLetter(ctx context.Context, text string, wait query.Wait) (deadletters.DeadLetter, error) {
	id, err := api.IDOf(text, "not_found")
	if err != nil {
		return deadletters.DeadLetter{}, err
	}
	return s.Reads.DeadLetters.DeadLetterAt(ctx, query.Viewer{Operator: true}, id, wait)
}

type retryRequest struct {
	DeadLetterPath
	api.Idempotent
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

func (s *handlers) retryDeadLetter(ctx context.Context, in *retryRequest) (*retryAnswer, error) {
	req, err := api.Once(ctx)
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
	position, err := s.Letters.RequestRetry(ctx, req, letter.ID, letter.TenantID, reason)
	answer := &retryAnswer{Location: api.Prefix + "/dead-letters/" + letter.ID.String()}
	answer.Body.DeadLetterID, answer.Body.Position = letter.ID, position
	return answer, err
}

type discardRequest struct {
	DeadLetterPath
	api.Idempotent
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
	} `nameHint:"Discard"`
}

func (s *handlers) discardDeadLetter(ctx context.Context, in *discardRequest) (*api.Answer[repair.Discarded], error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	letter, err := s.deadLetter(ctx, in.DeadLetterID, query.Wait{})
	if err != nil {
		return nil, err
	}
	return api.AnswerOf(s.Letters.Discard(ctx, req, letter.ID, letter.TenantID, in.Body.Reason))
}
