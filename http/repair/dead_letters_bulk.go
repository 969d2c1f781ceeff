package repair

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/query"
)

func (s *handlers) bulkDeadLetterOperations(t *api.Site) {
	const path = api.Prefix + "/dead-letters"
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path + "/groups", Who: auth.Operator, Scopes: readers,
		ID: "listDeadLetterGroups", Tag: "Dead letters", Summary: "Group dead letters by their cause",
		Description: "Biggest group first. A fingerprint is made of stage, code, consumer, feature and the reason without its quotes, " +
			"numbers and ids.",
		Problems: []int{http.StatusNotFound}}, s.listDeadLetterGroups)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path + "/bulk", Who: auth.Operator, Scopes: deciders, ID: "bulkDeadLetters",
		Tag: "Dead letters", Status: http.StatusAccepted, Also: http.StatusOK,
		Summary: "Retry or discard many dead letters",
		Description: "202 with the request, each dead letter decided as if it was alone; 200 for a dry run, with the effect. " +
			"A call that does not end may be sent again: no dead letter that is RETRYING is retried once more. A call changes at most " +
			"10,000 dead letters.",
		Problems: []int{http.StatusNotFound}}, s.bulkDeadLetters)
}

func (s *handlers) listDeadLetterGroups(ctx context.Context, in *deadLettersRequest) (*api.Listed[deadletters.DeadLetterGroup], error) {
	q, err := s.deadLetterQuery(ctx, &in.DeadLetterFilters)
	if err != nil {
		return nil, err
	}
	l := in.list("dead letter groups")
	return api.ListRead(l, in.Paging, func(limit int, after string) (query.Page[deadletters.DeadLetterGroup], error) {
		q.Limit, q.After = limit, after
		return s.Reads.DeadLetters.DeadLetterGroups(ctx, q)
	})
}

// bulkFilter is DeadLetterFilters as a body, with ids.
type bulkFilter struct {
	Status      string   `json:"status,omitempty" enum:"FAILED,RETRYING,RESOLVED,DISCARDED"`
	Stage       string   `json:"stage,omitempty" enum:"INGESTION,PUBLISHING,VALIDATION,AGGREGATION"`
	TenantID    string   `json:"tenantId,omitempty" format:"uuid"`
	Reason      string   `json:"reason,omitempty" minLength:"1" maxLength:"100" doc:"The code of the failure."`
	Fingerprint string   `json:"fingerprint,omitempty" minLength:"32" maxLength:"32"`
	Feature     string   `json:"feature,omitempty" minLength:"1" maxLength:"64"`
	Consumer    string   `json:"consumer,omitempty" minLength:"1" maxLength:"100"`
	Topic       string   `json:"topic,omitempty" minLength:"1" maxLength:"100"`
	IDs         []string `json:"ids,omitempty" minItems:"1" maxItems:"1000" nullable:"false"`
	From        string   `json:"from,omitempty" format:"date-time" doc:"First failed from this time on."`
	To          string   `json:"to,omitempty" format:"date-time" doc:"First failed before this time."`
}

type bulkRequest struct {
	api.Idempotent
	Body struct {
		Action string     `json:"action" enum:"retry,discard"`
		Filter bulkFilter `json:"filter" doc:"All members that are there must match; at least one must be there."`
		Reason string     `json:"reason,omitempty" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log. Required for a discard."`
		DryRun bool       `json:"dryRun,omitempty" doc:"Only report the effect."`

		ExpectedMatched *int `json:"expectedMatched,omitempty" minimum:"0" maximum:"10000"`
	} `nameHint:"DeadLetterBulk"`
}

type bulkAnswer struct {
	Status int
	Body   struct {
		DryRun    bool                 `json:"dryRun"`
		BulkID    *uuid.UUID           `json:"bulkId,omitempty" format:"uuid"`
		Matched   int                  `json:"matched"`
		Eligible  *int                 `json:"eligible,omitempty"`
		Requested *int                 `json:"requested,omitempty" doc:"Number of dead letters that are retried or discarded."`
		Refused   []repair.BulkRefusal `json:"refused" nullable:"false" doc:"Number of dead letters that are not changed, by reason."`
		Sample    []uuid.UUID          `json:"sample,omitempty" nullable:"false" doc:"Of a dry run: some of the eligible ones, at most 20."`
	} `nameHint:"DeadLetterBulkResult"`
}

func (s *handlers) bulkDeadLetters(ctx context.Context, in *bulkRequest) (*bulkAnswer, error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	filter, err := s.bulkFilter(ctx, &in.Body.Filter)
	if err != nil {
		return nil, err
	}
	request := repair.BulkRequest{Action: in.Body.Action, Filter: filter, Reason: in.Body.Reason, DryRun: in.Body.DryRun,
		Expected: in.Body.ExpectedMatched}
	done, err := s.Letters.Bulk(ctx, req, request, func(ctx context.Context) ([]domain.DeadLetterRef,
		error) {
		return s.Reads.DeadLetters.FindDeadLetters(ctx, &filter, repair.MaxBulk+1)
	})
	if err != nil {
		return nil, err
	}
	answer := &bulkAnswer{Status: http.StatusAccepted}
	b := &answer.Body
	b.DryRun, b.Matched, b.Refused = request.DryRun, done.Matched, done.Refused
	if request.DryRun {
		answer.Status = http.StatusOK
		b.Eligible, b.Sample = &done.Done, done.Sample
	} else {
		b.BulkID, b.Requested = &done.BulkID, &done.Done
	}
	return answer, nil
}

// bulkFilter reads a filter. The order of the checks decides which fault is reported.
func (s *handlers) bulkFilter(ctx context.Context, in *bulkFilter) (events.DeadLetterFilter, error) {
	filter := events.DeadLetterFilter{Status: in.Status, Stage: in.Stage, Reason: in.Reason, Fingerprint: in.Fingerprint,
		Feature: in.Feature, Consumer: in.Consumer, Topic: in.Topic}
	var err error
	if filter.TenantID, err = s.OptionalTenant(ctx, in.TenantID); err != nil {
		return filter, err
	}
	for _, text := range in.IDs {
		id, err := api.IDOf(text, "not_found")
		if err != nil {
			return filter, problem.New("ids_invalid", "ids must be ids of dead letters, as lists show them").At("/filter/ids")
		}
		filter.IDs = append(filter.IDs, id)
	}
	filter.From, filter.To, err = api.Between{From: in.From, To: in.To}.Read()
	return filter, err
}
