package repair

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/state"
)

func (s *handlers) projectionOperations(t *api.Site) {
	const path, one = api.Prefix + "/projections", api.Prefix + "/projections/{name}"
	gone := http.StatusNotFound
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: readers, ID: "listProjections",
		Tag: "Projections", Summary: "List projections",
		Description: "The rows that readers see, their freshness, and the rows of rebuilds that are kept (generations)."},
		s.listProjections)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/rebuilds", Who: auth.Operator, Scopes: deciders, ID: "startRebuild",
		Tag: "Projections", Status: http.StatusAccepted,
		Summary: "Rebuild a projection",
		Description: "Computes new rows from the log beside the live ones, by the newest version of the logic. Readers do not see them " +
			"until the rebuild is promoted.",
		Problems: []int{gone}}, s.startRebuild)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/verify", Who: auth.Operator, Scopes: deciders, ID: "verifyProjection",
		Tag: "Projections", Status: http.StatusAccepted, Also: http.StatusOK,
		Summary: "Compare a projection with the log",
		Description: "Computes the rows from the log and compares: any key that differs is an incident. With `repair` the live rows are " +
			"replaced where they differ. " +
			"200 with the outcome if Prefer: wait=N was long enough, else 202; the rebuild has the outcome, too.",
		Problems: []int{gone}}, s.verifyProjection)
}

func (s *handlers) listProjections(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[state.ProjectionStatus], error) {
	name := func(p *state.ProjectionStatus) string { return p.Name }
	return api.ListCatalogue(api.List{"projections"}, in.Paging, func(p commands.Page) ([]state.ProjectionStatus, error) {
		found, err := s.Reads.State.Projections(ctx)
		return api.Behind(found, p.After, name), err
	}, name)
}

// ProjectionPath names a projection.
type ProjectionPath struct {
	Name string `path:"name" example:"usage_aggregates"`
}

// RebuildScope is the part of a body that selects the keys of a rebuild.
type RebuildScope struct {
	TenantID  string `json:"tenantId,omitempty" format:"uuid" doc:"Of one tenant only."`
	PeriodKey string `json:"periodKey,omitempty" doc:"Of one period only: 2026-05, 2026 or lifetime." example:"2026-05"`
	Workers   int    `json:"workers,omitempty" minimum:"1" maximum:"32" doc:"Partitions that are added up at once; absent: half the processors of the instance."`
}

func (b *RebuildScope) command(projection, reason string) (repair.StartRebuild, error) {
	c := repair.StartRebuild{Projection: projection, PeriodKey: b.PeriodKey, Workers: b.Workers, Reason: reason}
	if b.TenantID == "" {
		return c, nil
	}
	var err error
	c.TenantID, err = api.IDOf(b.TenantID, "tenant_not_found")
	return c, err
}

type startRebuildRequest struct {
	ProjectionPath
	api.Idempotent
	Body struct {
		RebuildScope
		Reason string `json:"reason" doc:"The reason, 1 to 500 characters, recorded in the log."`
	} `nameHint:"NewRebuild"`
}

type rebuildAccepted = api.Accepted[rebuild.RebuildStatus]

func rebuildLocation(id uuid.UUID) string { return api.Prefix + "/rebuilds/" + id.String() }

func (s *handlers) startRebuild(ctx context.Context, in *startRebuildRequest) (*rebuildAccepted, error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	command, err := in.Body.command(in.Name, in.Body.Reason)
	if err != nil {
		return nil, err
	}
	r, err := s.Rebuilds.Start(ctx, req, command)
	if err != nil {
		return nil, err
	}
	return s.accepted(ctx, r.ID)
}

// accepted answers with the current state of a rebuild.
func (s *handlers) accepted(ctx context.Context, id uuid.UUID) (*rebuildAccepted, error) {
	found, err := s.Reads.Rebuilds.Rebuild(ctx, id)
	return &rebuildAccepted{Location: rebuildLocation(id), Body: found}, err
}

type verifyRequest struct {
	ProjectionPath
	api.Idempotent
	Prefer string `header:"Prefer" doc:"wait=N: wait up to N seconds (at most 30) for the outcome (RFC 7240)." example:"wait=10"`
	Body   *struct {
		RebuildScope
		Reason string `json:"reason,omitempty" doc:"The reason, recorded in the log; required with repair."`
		Repair bool   `json:"repair,omitempty" doc:"Replace the live rows where they differ."`
	} `nameHint:"NewVerify"`
}

type verifyAnswer struct {
	Status   int
	Location string `header:"Location"`
	Applied  string `header:"Preference-Applied"`
	Body     struct {
		RebuildID uuid.UUID         `json:"rebuildId" format:"uuid"`
		State     string            `json:"state"`
		Differs   *int64            `json:"differs" nullable:"true" doc:"Keys whose live rows differ from the log; null until compared."`
		Drift     []rebuild.DiffRow `json:"drift" nullable:"false" doc:"The first thousand of them."`
		Repaired  bool              `json:"repaired"`
		Failure   *string           `json:"failure" nullable:"true"`
	} `nameHint:"Verified"`
}

// verifyReason is the default reason of a verify without repair.
const verifyReason = "verify"

func (s *handlers) verifyProjection(ctx context.Context, in *verifyRequest) (*verifyAnswer, error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	command := repair.StartRebuild{Projection: in.Name, Reason: verifyReason}
	if b := in.Body; b != nil {
		if command, err = b.command(in.Name, b.Reason); err != nil {
			return nil, err
		}
		if command.Repair = b.Repair; command.Reason == "" && !b.Repair {
			command.Reason = verifyReason
		}
	}
	command.Verify = true
	r, err := s.Rebuilds.Start(ctx, req, command)
	if err != nil {
		return nil, err
	}
	wait := api.PreferredWait(in.Prefer)
	found, err := s.outcome(ctx, r.ID, wait)
	if err != nil {
		return nil, err
	}
	answer := &verifyAnswer{Status: http.StatusAccepted, Location: rebuildLocation(r.ID)}
	if wait > 0 {
		answer.Applied = "wait=" + strconv.Itoa(int(wait/time.Second))
	}
	if verified(&found) {
		answer.Status = http.StatusOK
	}
	b := &answer.Body
	b.RebuildID, b.State, b.Differs, b.Failure = found.ID, found.State, found.Differs, found.Failure
	b.Repaired = found.State == domain.RebuildPromoted
	if b.Drift = found.Drift; b.Drift == nil {
		b.Drift = []rebuild.DiffRow{}
	}
	return answer, nil
}

// verified reports whether a verify has finished.
func verified(r *rebuild.RebuildStatus) bool {
	return r.State != domain.RebuildFolding && r.State != domain.RebuildCatchingUp && r.State != domain.RebuildReady
}

// outcomePoll is the poll interval while a request waits for a verify to finish.
const outcomePoll = 50 * time.Millisecond

func (s *handlers) outcome(ctx context.Context, id uuid.UUID, wait time.Duration) (rebuild.RebuildStatus, error) {
	for end := time.Now().Add(wait); ; {
		found, err := s.Reads.Rebuilds.Rebuild(ctx, id)
		left := time.Until(end)
		if err != nil || verified(&found) || left <= 0 {
			return found, err
		}
		select {
		case <-ctx.Done():
			return found, ctx.Err()
		case <-time.After(min(outcomePoll, left)):
		}
	}
}
