package http

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/rebuild"
)

func (s *repairHandlers) rebuildOperations(t *site) {
	const path, one = prefix + "/rebuilds", prefix + "/rebuilds/{rebuildId}"
	gone, busy := http.StatusNotFound, http.StatusConflict
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: readers, id: "listRebuilds", tag: "Projections", summary: "List rebuilds",
		description: "Newest first, without the units of their work."}, s.listRebuilds)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Operator, scopes: readers, id: "getRebuild", tag: "Projections", summary: "Read a rebuild",
		description: "With its progress in exact positions of the log, and the findings of a verify.", problems: []int{gone}}, s.getRebuild)
	t.serveRaw(operation{method: http.MethodGet, path: one + "/events", who: auth.Operator, scopes: readers, id: "watchRebuild", tag: "Projections", summary: "Watch a rebuild's progress",
		description: "Server-sent events: `progress` with the rebuild at once and at each change, at most twice a second, and `done` when it is folded or has ended.",
		problems:    []int{gone}}, describeRebuildEvents, s.watchRebuild)
	t.serveRaw(operation{method: http.MethodGet, path: one + "/diff", who: auth.Operator, scopes: readers, id: "diffRebuild", tag: "Projections", summary: "Read the changes of a rebuild",
		description: "Key by key, from one snapshot in which both generations stand at the same positions. Only keys that differ unless `all=true`. " +
			"Figures are exact integers; `null` where there is no row. As CSV, by `Accept: text/csv` or `format=csv`, the whole is one answer.",
		problems: []int{gone, busy}}, describeDiff, s.diffRebuild)
	serve(t, operation{method: http.MethodGet, path: one + "/diff/events", who: auth.Operator, scopes: readers, id: "diffRebuildEvents", tag: "Projections", summary: "Read which events make a key's difference",
		description: "Folds the tenant's verdicts by both generations' folds. A difference that no event explains is drift: rows that differ from their own fold of the log.",
		problems:    []int{gone, busy}}, s.diffEvents)
	serve(t, operation{method: http.MethodPost, path: one + "/promote", who: auth.Operator, scopes: deciders, id: "promoteRebuild", tag: "Projections", status: http.StatusAccepted,
		summary: "Promote a rebuild",
		description: "One flip: no read is blocked, and no read sees a mixture. With `If-Match` and the tag of a difference it is refused with 409 `state_changed`, with the present figures, " +
			"if neither the positions nor the differing keys, the sums of their deltas and their closed periods are those of the tag.",
		problems: []int{gone}}, s.promoteRebuild)
	for _, step := range []struct {
		name, id, summary, description string
		take                           func(context.Context, *decisionRequest) (*rebuildAccepted, error)
	}{
		{"rollback", "rollBackRebuild", "Roll back to the previous generation", "Possible until `canRollBackUntil`. With `If-Match` and the ETag of the rebuild, only in that state.", s.rollBackRebuild},
		{"abandon", "abandonRebuild", "Drop a rebuild", "Ends a rebuild that is not promoted, and drops its rows. Readers see no change.", s.abandonRebuild},
	} {
		serve(t, operation{method: http.MethodPost, path: one + "/" + step.name, who: auth.Operator, scopes: deciders, id: step.id, tag: "Projections", status: http.StatusAccepted,
			summary: step.summary, description: step.description, problems: []int{gone}}, step.take)
	}
}

// RebuildPath names a rebuild.
type RebuildPath struct {
	RebuildID string `path:"rebuildId" format:"uuid"`
}

func (p *RebuildPath) id() (uuid.UUID, error) { return idOf(p.RebuildID, "rebuild_not_found") }

func (s *repairHandlers) listRebuilds(ctx context.Context, in *struct{ Paging }) (*listed[rebuild.RebuildStatus], error) {
	l := list{"rebuilds"}
	_, after, err := l.open(in.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Rebuilds.Rebuilds(ctx, in.Limit, after)
	return &listed[rebuild.RebuildStatus]{listedFrom(l, found)}, err
}

type rebuildAnswer struct {
	ETag string `header:"ETag" doc:"The tag of its state, for If-Match of a rollback or an abandonment."`
	Body rebuild.RebuildStatus
}

func rebuildRef(id uuid.UUID) commands.Ref {
	return commands.Ref{Of: commands.EntityRebuild, ID: id.String()}
}

func (s *repairHandlers) getRebuild(ctx context.Context, in *struct{ RebuildPath }) (*rebuildAnswer, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	tag, err := s.tagOf(ctx, rebuildRef(id))
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Rebuilds.Rebuild(ctx, id)
	return &rebuildAnswer{tag, found}, err
}

type decisionRequest struct {
	RebuildPath
	Idempotent
	Conditional
	Body struct {
		Reason string `json:"reason" doc:"The reason, 1 to 500 characters, recorded in the log."`
	} `nameHint:"RebuildDecision"`
}

type promoteRequest struct {
	RebuildPath
	Idempotent
	IfMatch string `header:"If-Match" doc:"The etag of the difference that was shown: promote no other. Without it, any is promoted."`
	Body    struct {
		Reason string `json:"reason" doc:"The reason, 1 to 500 characters, recorded in the log."`
	} `nameHint:"RebuildDecision"`
}

func (s *repairHandlers) promoteRebuild(ctx context.Context, in *promoteRequest) (*rebuildAccepted, error) {
	shown, err := entityTags(edge.ExchangeOf(ctx).From.Header["If-Match"])
	if err != nil {
		return nil, err
	}
	decision := &decisionRequest{RebuildPath: in.RebuildPath, Body: in.Body}
	if shown == nil {
		return s.decided(ctx, decision, onceOf, s.Rebuilds.Promote)
	}
	return s.decided(ctx, decision, onceOf, func(ctx context.Context, req commands.Request, id uuid.UUID, reason string) (domain.Rebuild, error) {
		return s.Rebuilds.PromoteShown(ctx, req, id, reason, shown)
	})
}

func (s *repairHandlers) abandonRebuild(ctx context.Context, in *decisionRequest) (*rebuildAccepted, error) {
	return s.decided(ctx, in, changeOf, s.Rebuilds.Abandon)
}

func (s *repairHandlers) rollBackRebuild(ctx context.Context, in *decisionRequest) (*rebuildAccepted, error) {
	return s.decided(ctx, in, changeOf, s.Rebuilds.RollBack)
}

type decision func(ctx context.Context, req commands.Request, id uuid.UUID, reason string) (domain.Rebuild, error)

// onceOf is changeOf without the state: If-Match of a promotion names that of the difference.
func onceOf(ctx context.Context, _ commands.Ref) (commands.Request, error) {
	x := edge.ExchangeOf(ctx)
	once, err := idempotency(x)
	return x.Request(once), err
}

func (s *repairHandlers) decided(ctx context.Context, in *decisionRequest, of func(context.Context, commands.Ref) (commands.Request, error), decide decision) (*rebuildAccepted, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	req, err := of(ctx, rebuildRef(id))
	if err != nil {
		return nil, err
	}
	if _, err := decide(ctx, req, id, in.Body.Reason); err != nil {
		return nil, err
	}
	s.confirm(ctx)
	return s.accepted(ctx, id)
}
