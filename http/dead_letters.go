package http

import (
	"context"
	nethttp "net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

func (s *service) deadLetterOperations(t *site) {
	const path, one = prefix + "/dead-letters", prefix + "/dead-letters/{deadLetterId}"
	gone := nethttp.StatusNotFound
	serve(t, operation{method: nethttp.MethodGet, path: path, id: "listDeadLetters", tag: "Dead letters", summary: "List dead letters",
		description: "Newest first, without payloads.", problems: []int{gone}}, s.listDeadLetters)
	serve(t, operation{method: nethttp.MethodGet, path: one, id: "getDeadLetter", tag: "Dead letters", summary: "Read a dead letter",
		problems: []int{gone}}, s.getDeadLetter)
	serve(t, operation{method: nethttp.MethodPost, path: one + "/retry", id: "retryDeadLetter", tag: "Dead letters", status: nethttp.StatusAccepted,
		summary:     "Retry a dead letter",
		description: "Appends a new event that takes the way of the old one. Whatever is retried, the producer's eventId counts at most once.",
		problems:    []int{gone, nethttp.StatusConflict, nethttp.StatusUnprocessableEntity}}, s.retryDeadLetter)
}

type deadLettersRequest struct {
	OfTenant
	Freshness
	Between
	Paging
	Status string `query:"status" enum:"FAILED,RETRYING,RESOLVED,DISCARDED"`
	Stage  string `query:"stage" enum:"INGESTION,PUBLISHING,VALIDATION,AGGREGATION"`
	Reason string `query:"reason" doc:"The code of the failure." example:"feature_not_found"`
}

func (s *service) listDeadLetters(ctx context.Context, in *deadLettersRequest) (*listed[projections.DeadLetter], error) {
	ask := projections.DeadLetterQuery{Status: in.Status, Stage: in.Stage, Reason: in.Reason, Limit: in.Limit}
	if in.TenantID != "" {
		tenant, err := s.knownTenant(ctx, in.TenantID)
		if err != nil {
			return nil, err
		}
		ask.TenantID = &tenant.ID
	}
	var err error
	if ask.From, ask.To, err = in.read(); err != nil {
		return nil, err
	}
	if ask.Wait, err = in.wait(); err != nil {
		return nil, err
	}
	l := list{"dead letters", in.TenantID, in.Status, in.Stage, in.Reason, in.From, in.To}
	if _, ask.After, err = l.open(in.Cursor); err != nil {
		return nil, err
	}
	found, err := s.Reads.DeadLetters(ctx, projections.Viewer{Operator: true}, ask)
	return &listed[projections.DeadLetter]{listedFrom(l, found.Data, found.Next)}, err
}

type DeadLetterPath struct {
	DeadLetterID string `path:"deadLetterId" format:"uuid"`
}

type deadLetterAnswer struct{ Body projections.DeadLetter }

func (s *service) getDeadLetter(ctx context.Context, in *struct{ DeadLetterPath }) (*deadLetterAnswer, error) {
	found, err := s.deadLetter(ctx, in.DeadLetterID)
	return &deadLetterAnswer{found}, err
}

func (s *service) deadLetter(ctx context.Context, text string) (projections.DeadLetter, error) {
	id, err := idOf(text, "not_found")
	if err != nil {
		return projections.DeadLetter{}, err
	}
	return s.Reads.DeadLetter(ctx, projections.Viewer{Operator: true}, id)
}

type retryRequest struct {
	DeadLetterPath
	Idempotent
	Body *struct {
		Reason string `json:"reason,omitempty" maxLength:"500" doc:"Kept in the log with the request."`
	} `nameHint:"Retry"`
}

type retryAnswer struct {
	Location string `header:"Location" doc:"The dead letter, whose status tells how it went."`
	Body     struct {
		DeadLetterID uuid.UUID       `json:"deadLetterId" format:"uuid"`
		Position     events.Position `json:"position" doc:"Of the request in the log."`
	} `nameHint:"RetryRequested"`
}

func (s *service) retryDeadLetter(ctx context.Context, in *retryRequest) (*retryAnswer, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	letter, err := s.deadLetter(ctx, in.DeadLetterID)
	if err != nil {
		return nil, err
	}
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	position, err := s.Letters.RequestRetry(ctx, exchangeOf(ctx).caller, once, letter.ID, letter.TenantID, reason)
	answer := &retryAnswer{Location: prefix + "/dead-letters/" + letter.ID.String()}
	answer.Body.DeadLetterID, answer.Body.Position = letter.ID, position
	return answer, err
}
