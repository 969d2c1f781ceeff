package http

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/state"
)

func (s *repairHandlers) projectionOperations(t *site) {
	const path, one = prefix + "/projections", prefix + "/projections/{name}"
	gone := http.StatusNotFound
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: readers, id: "listProjections", tag: "Projections", summary: "List projections",
		description: "The generations that readers see, their freshness, and the generations that are kept."}, s.listProjections)
	serve(t, operation{method: http.MethodPost, path: one + "/rebuilds", who: auth.Operator, scopes: deciders, id: "startRebuild", tag: "Projections", status: http.StatusAccepted,
		summary:     "Rebuild a projection",
		description: "Folds a new generation from the log beside the live one, by the newest version of the fold. Readers do not see it until it is promoted.",
		problems:    []int{gone}}, s.startRebuild)
	serve(t, operation{method: http.MethodPost, path: one + "/verify", who: auth.Operator, scopes: deciders, id: "verifyProjection", tag: "Projections", status: http.StatusAccepted, also: http.StatusOK,
		summary: "Compare a projection with the log",
		description: "Folds the log and compares: any key that differs is an incident. With `repair` the live rows are replaced where they differ. " +
			"200 with the outcome if Prefer: wait=N was long enough, else 202; the rebuild has the outcome, too.",
		problems: []int{gone}}, s.verifyProjection)
}

func (s *repairHandlers) listProjections(ctx context.Context, in *struct{ Paging }) (*listed[state.ProjectionStatus], error) {
	l := list{"projections"}
	_, after, err := l.open(in.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.State.Projections(ctx)
	name := func(p *state.ProjectionStatus) string { return p.Name }
	return &listed[state.ProjectionStatus]{cut(l, behind(found, after, name), in.Limit, name)}, err
}

// ProjectionPath names a projection.
type ProjectionPath struct {
	Name string `path:"name" example:"usage_aggregates"`
}

// RebuildScope is the part of a body that selects the keys of a rebuild.
type RebuildScope struct {
	TenantID  string `json:"tenantId,omitempty" format:"uuid" doc:"Of one tenant only."`
	PeriodKey string `json:"periodKey,omitempty" doc:"Of one period only: 2026-05, 2026 or lifetime." example:"2026-05"`
	Workers   int    `json:"workers,omitempty" minimum:"1" maximum:"32" doc:"How many partitions are folded at once; half the processors of the instance if absent, so that readers have the rest."`
}

func (b *RebuildScope) command(projection, reason string) (repair.StartRebuild, error) {
	c := repair.StartRebuild{Projection: projection, PeriodKey: b.PeriodKey, Workers: b.Workers, Reason: reason}
	if b.TenantID == "" {
		return c, nil
	}
	var err error
	c.TenantID, err = idOf(b.TenantID, "tenant_not_found")
	return c, err
}

type startRebuildRequest struct {
	ProjectionPath
	Idempotent
	Body struct {
		RebuildScope
		Reason string `json:"reason" doc:"The reason, 1 to 500 characters, recorded in the log."`
	} `nameHint:"NewRebuild"`
}

type rebuildAccepted struct {
	Location string `header:"Location"`
	Body     rebuild.RebuildStatus
}

func rebuildLocation(id uuid.UUID) string { return prefix + "/rebuilds/" + id.String() }

func (s *repairHandlers) startRebuild(ctx context.Context, in *startRebuildRequest) (*rebuildAccepted, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	command, err := in.Body.command(in.Name, in.Body.Reason)
	if err != nil {
		return nil, err
	}
	r, err := s.Rebuilds.Start(ctx, edge.ExchangeOf(ctx).Request(once), command)
	if err != nil {
		return nil, err
	}
	return s.accepted(ctx, r.ID)
}

// accepted answers with the current state of a rebuild.
func (s *repairHandlers) accepted(ctx context.Context, id uuid.UUID) (*rebuildAccepted, error) {
	found, err := s.Reads.Rebuilds.Rebuild(ctx, id)
	return &rebuildAccepted{rebuildLocation(id), found}, err
}

type verifyRequest struct {
	ProjectionPath
	Idempotent
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

func (s *repairHandlers) verifyProjection(ctx context.Context, in *verifyRequest) (*verifyAnswer, error) {
	once, err := once(ctx)
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
	r, err := s.Rebuilds.Start(ctx, edge.ExchangeOf(ctx).Request(once), command)
	if err != nil {
		return nil, err
	}
	wait := preferredWait(in.Prefer)
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

func (s *repairHandlers) outcome(ctx context.Context, id uuid.UUID, wait time.Duration) (rebuild.RebuildStatus, error) {
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
