package operate

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) sagaOperations(t *api.Site) {
	const path, one = api.Prefix + "/sagas", api.Prefix + "/sagas/{sagaId}"
	gone := http.StatusNotFound
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: readers, ID: "listSagas", Tag: "Sagas",
		Summary:     "List background processes",
		Description: "Each has several steps, such as those of the close of a period. Newest first, ended ones too.",
		Problems:    []int{gone}},
		s.listSagas)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: readers, ID: "getSaga", Tag: "Sagas",
		Summary:     "Read a background process",
		Description: "Its step, and the conditions that it waits for.", Problems: []int{gone}}, s.getSaga)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/retry", Who: auth.Operator, Scopes: deciders, ID: "retrySaga",
		Tag: "Sagas", Status: http.StatusAccepted,
		Summary: "Retry a background process now",
		Description: "An open one retries by itself; this begins the next attempt at once. With despite it no longer waits for these " +
			"conditions. " +
			"If a step is running, another attempt follows it. An ended process does not run again.",
		Problems: []int{gone}}, s.retrySaga)
}

// SagaBody is a saga in its wire format.
type SagaBody struct {
	ID         uuid.UUID  `json:"id" format:"uuid"`
	Kind       string     `json:"kind" doc:"Kind of the process."`
	TenantID   *uuid.UUID `json:"tenantId" format:"uuid" nullable:"true" doc:"null: a process of the platform."`
	Key        string     `json:"key" doc:"Names the process among those of its kind and tenant; used once."`
	Step       string     `json:"step" doc:"The step that runs next, or now; the last one of an ended process."`
	State      string     `json:"state" enum:"RUNNING,PARTIAL,DRIFT,COMPLETED,COMPENSATED,FAILED"`
	Attempts   int        `json:"attempts" doc:"Failures of the step since it last succeeded."`
	NextAt     time.Time  `json:"nextAt"`
	DeadlineAt *time.Time `json:"deadlineAt" doc:"After this time an open process is PARTIAL; null: no deadline."`
	Missing    []string   `json:"missing" nullable:"false" doc:"Conditions that the step waits for, or that were missing at the end."`
	Despite    []string   `json:"despite" nullable:"false" doc:"Conditions that an operator waived."`
	LastError  *string    `json:"lastError" doc:"The last failure of the step; null if its last run succeeded."`
	LastReason *string    `json:"lastReason" doc:"The reason of the last retry by an operator; null: none."`
	LastActor  *string    `json:"lastActor" doc:"The key of the last retry, as api_key/id; null: none."`
	CreatedAt  time.Time  `json:"createdAt"`
	EndedAt    *time.Time `json:"endedAt" doc:"null while it is open."`
	Outcome    *string    `json:"outcome" doc:"success, compensated, or partial: it ended without some of its effects. null while it is open."`
}

func SagaOf(v *domain.Saga) SagaBody {
	b := SagaBody{
		ID: v.ID, Kind: v.Kind, Key: v.Key, Step: v.Step, State: v.State, Attempts: v.Attempts, NextAt: v.NextAt,
		DeadlineAt: v.DeadlineAt,
		Missing:    append([]string{}, v.Missing...), Despite: append([]string{}, v.Despite...), LastError: api.TextOrNull(v.LastError),
		LastReason: api.TextOrNull(v.LastReason), LastActor: api.TextOrNull(v.LastActor), CreatedAt: v.CreatedAt,
		EndedAt: v.EndedAt, Outcome: api.TextOrNull(v.Outcome),
	}
	if v.TenantID != uuid.Nil {
		b.TenantID = &v.TenantID
	}
	return b
}

type sagasRequest struct {
	api.OfTenant
	Kind  string `query:"kind" maxLength:"40" doc:"Processes of this kind." example:"period_close"`
	State string `query:"state" enum:"RUNNING,PARTIAL,DRIFT,COMPLETED,COMPENSATED,FAILED" doc:"Processes in this state."`
	api.Paging
}

func (s *handlers) listSagas(ctx context.Context, in *sagasRequest) (*api.Listed[SagaBody], error) {
	tenant, err := s.OptionalTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return api.ListCatalogue(api.List{"sagas", in.TenantID, in.Kind, in.State}, in.Paging, func(p commands.Page) ([]SagaBody, error) {
		found, err := s.SagaReader.Sagas(ctx, commands.SagaQuery{TenantID: tenant, Kind: in.Kind, State: in.State, Page: p})
		return api.BodiesOf(found, SagaOf), err
	}, func(b *SagaBody) string { return b.ID.String() })
}

// SagaPath names a saga.
type SagaPath struct {
	SagaID string `path:"sagaId" format:"uuid"`
}

func (p *SagaPath) id() (uuid.UUID, error) { return api.IDOf(p.SagaID, "saga_not_found") }

func (s *handlers) getSaga(ctx context.Context, in *struct{ SagaPath }) (*api.Answer[SagaBody], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return api.AnswerAs(SagaOf)(api.Present(s.SagaReader.Saga(ctx, id))("saga_not_found"))
}

type retrySagaRequest struct {
	SagaPath
	api.Idempotent
	Body struct {
		Reason  string   `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, kept with the process."`
		Despite []string `json:"despite,omitempty" minItems:"1" maxItems:"10" nullable:"false" example:"[\"dead_letters\"]"`
	} `nameHint:"SagaRetry"`
}

func (s *handlers) retrySaga(ctx context.Context, in *retrySagaRequest) (*api.Accepted[SagaBody], error) {
	req, id, err := api.ChangeOne(ctx, in.SagaID, "saga_not_found")
	if err != nil {
		return nil, err
	}
	saga, err := s.Sagas.Retry(ctx, req, id, in.Body.Reason, in.Body.Despite)
	return api.AcceptedSaga(id, SagaOf(&saga), err)
}
