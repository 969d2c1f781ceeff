package entitlements

import (
	"context"
	"net/http"
	"strings"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/entitlements"
)

func (s *handlers) accountOperations(t *api.Site) {
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: api.Prefix + "/quota/accounts", Who: auth.Operator,
		Scopes: []string{commands.ScopeBilling, commands.ScopeAudit}, ID: "listAccounts", Tag: "Entitlements",
		Summary: "List the accounts of limits",
		Description: "The used amounts of a tenant's QUOTA features, by period, beside the limit of its present subscription. The " +
			"accounts of a page and headPosition are of one snapshot.",
		Problems: []int{http.StatusNotFound}}, s.accounts)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: api.Prefix + "/quota/accounts/reconcile", Who: auth.Operator,
		Scopes: []string{commands.ScopeBilling}, ID: "reconcileAccounts", Tag: "Entitlements",
		Summary: "Compare a tenant's accounts with the log, and repair them",
		Description: "Computes the accounts and the held reservations from the tenant's events and lists those that differ: empty, unless " +
			"rows were changed outside of the service. " +
			"With repair, each account that differs is set to the log by an event with the reason; reservations are only listed. It " +
			"reads all events of the tenant's log partition.",
		Problems: []int{http.StatusNotFound}}, s.reconcileAccounts)
}

type reconcileRequest struct {
	api.Idempotent
	Body struct {
		TenantID string `json:"tenantId" format:"uuid" doc:"The tenant whose accounts are compared."`
		Repair   bool   `json:"repair,omitempty" doc:"Set the accounts that differ to the log."`
		Reason   string `json:"reason,omitempty" maxLength:"500" doc:"The reason, recorded in the log; required with repair."`
	} `nameHint:"NewReconciliation"`
}

type reconcileAnswer struct {
	Body repair.Reconciliation
}

func (s *handlers) reconcileAccounts(ctx context.Context, in *reconcileRequest) (*reconcileAnswer, error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, err := s.KnownTenant(ctx, in.Body.TenantID)
	if err != nil {
		return nil, err
	}
	done, err := s.Accounts.Reconcile(ctx, req, tenant.ID, in.Body.Repair, in.Body.Reason)
	return &reconcileAnswer{done}, err
}

type accountsRequest struct {
	TenantID  string `query:"tenantId" format:"uuid" doc:"The tenant whose accounts are listed; required."`
	Feature   string `query:"feature" doc:"Accounts of this feature."`
	PeriodKey string `query:"periodKey" doc:"Accounts of this period, e.g. 2026-05, 2026 or lifetime."`
	api.Freshness
	api.Paging
}

type accountsAnswer struct {
	Body struct {
		Data         []entitlements.Account `json:"data" nullable:"false"`
		HeadPosition events.Position        `json:"headPosition"`
		NextCursor   *string                `json:"nextCursor" doc:"null on the last page."`
	} `nameHint:"Accounts"`
}

func (s *handlers) accounts(ctx context.Context, in *accountsRequest) (*accountsAnswer, error) {
	l := api.List{"accounts", in.TenantID, in.Feature, in.PeriodKey}
	_, after, err := l.Open(in.Cursor)
	if err != nil {
		return nil, err
	}
	if in.TenantID == "" {
		return nil, problem.New("parameter_missing", "Name the tenant by tenantId")
	}
	if in.PeriodKey != "" && !api.IsPeriod(in.PeriodKey) {
		return nil, api.PeriodInvalid("periodKey")
	}
	tenant, err := s.KnownTenant(ctx, in.TenantID)
	if err == nil {
		err = s.AwaitFigures(ctx, tenant.ID, in.Freshness)
	}
	if err != nil {
		return nil, err
	}
	q := entitlements.AccountQuery{TenantID: tenant.ID, Feature: in.Feature, PeriodKey: in.PeriodKey, Limit: in.Limit + 1}
	q.AfterFeature, q.AfterPeriod, _ = strings.Cut(after, "/") // no feature has a slash
	found, head, err := s.Reads.Entitlements.Accounts(ctx, q)
	if err != nil {
		return nil, err
	}
	page := api.Cut(l, found, in.Limit, func(a *entitlements.Account) string { return a.Feature + "/" + a.PeriodKey })
	answer := &accountsAnswer{}
	answer.Body.Data, answer.Body.HeadPosition, answer.Body.NextCursor = page.Data, head, page.NextCursor
	return answer, nil
}
