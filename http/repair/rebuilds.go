package repair

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
)

func (s *handlers) rebuildOperations(t *api.Site) {
	const path, one = api.Prefix + "/rebuilds", api.Prefix + "/rebuilds/{rebuildId}"
	gone, busy := http.StatusNotFound, http.StatusConflict
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: readers, ID: "listRebuilds",
		Tag: "Projections", Summary: "List rebuilds",
		Description: "Newest first, without the units of their work."}, s.listRebuilds)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: readers, ID: "getRebuild", Tag: "Projections",
		Summary:     "Read a rebuild",
		Description: "With its progress in exact positions of the log, and the findings of a verify.", Problems: []int{gone}}, s.getRebuild)
	api.ServeWriter(t, api.Operation{Method: http.MethodGet, Path: one + "/events", Who: auth.Operator, Scopes: readers, ID: "watchRebuild",
		Tag: "Projections", Summary: "Watch a rebuild's progress",
		Description: "Server-sent events: `progress` with the rebuild at once and at each change, at most twice a second, and `done` " +
			"when it is READY or has ended.",
		Problems: []int{gone}}, describeRebuildEvents, s.watchRebuild)
	api.ServeWriter(t, api.Operation{Method: http.MethodGet, Path: one + "/diff", Who: auth.Operator, Scopes: readers, ID: "diffRebuild",
		Tag: "Projections", Summary: "Read the changes of a rebuild",
		Description: "Key by key, from one snapshot in which live and rebuilt rows are at the same positions. Only keys that differ unless " +
			"`all=true`. " +
			"Figures are exact integers; `null` where there is no row. As CSV, by `Accept: text/csv` or `format=csv`, the whole is " +
			"one answer.",
		Problems: []int{gone, busy}}, describeDiff, s.diffRebuild)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one + "/diff/events", Who: auth.Operator, Scopes: readers,
		ID: "diffRebuildEvents", Tag: "Projections", Summary: "Read which events make a key's difference",
		Description: "Adds up the tenant's events by both versions of the logic. A difference that no event explains is drift: rows that " +
			"differ from their values computed from the log again.",
		Problems: []int{gone, busy}}, s.diffEvents)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/promote", Who: auth.Operator, Scopes: deciders, ID: "promoteRebuild",
		Tag: "Projections", Status: http.StatusAccepted,
		Summary: "Promote a rebuild",
		Description: "One flip: no read is blocked, and no read sees a mixture. With `If-Match` and the tag of a difference it is " +
			"refused with 409 `state_changed`, with the present figures, " +
			"if neither the positions nor the differing keys, the sums of their deltas and their closed periods are those of the tag.",
		Problems: []int{gone}}, s.promoteRebuild)
	for _, step := range []struct {
		name, id, summary, description string
		take                           func(context.Context, *decisionRequest) (*rebuildAccepted, error)
	}{
		{"rollback", "rollBackRebuild", "Roll back to the previous figures",
			"Possible until `canRollBackUntil`. With `If-Match` and the ETag of the rebuild, only in that state.", s.rollBackRebuild},
		{"abandon", "abandonRebuild", "Drop a rebuild", "Ends a rebuild that is not promoted, and drops its rows. Readers see no change.",
			s.abandonRebuild},
	} {
		api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/" + step.name, Who: auth.Operator, Scopes: deciders, ID: step.id,
			Tag: "Projections", Status: http.StatusAccepted,
			Summary: step.summary, Description: step.description, Problems: []int{gone}}, step.take)
	}
}

// RebuildPath names a rebuild.
type RebuildPath struct {
	RebuildID string `path:"rebuildId" format:"uuid"`
}

func (p *RebuildPath) id() (uuid.UUID, error) { return api.IDOf(p.RebuildID, "rebuild_not_found") }

func (s *handlers) listRebuilds(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[rebuild.RebuildStatus], error) {
	return api.ListRead(api.List{"rebuilds"}, in.Paging, func(limit int, after string) (query.Page[rebuild.RebuildStatus], error) {
		return s.Reads.Rebuilds.Rebuilds(ctx, limit, after)
	})
}

type rebuildAnswer struct {
	ETag string `header:"ETag" doc:"The tag of its state, for If-Match of a rollback or an abandonment."`
	Body rebuild.RebuildStatus
}

func rebuildRef(id uuid.UUID) commands.Ref {
	return commands.Ref{Of: commands.EntityRebuild, ID: id.String()}
}

func (s *handlers) getRebuild(ctx context.Context, in *struct{ RebuildPath }) (*rebuildAnswer, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	tag, err := s.TagOf(ctx, rebuildRef(id))
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Rebuilds.Rebuild(ctx, id)
	return &rebuildAnswer{tag, found}, err
}

type decisionRequest struct {
	RebuildPath
	api.Idempotent
	api.Conditional
	Body struct {
		Reason string `json:"reason" doc:"The reason, 1 to 500 characters, recorded in the log."`
	} `nameHint:"RebuildDecision"`
}

type promoteRequest struct {
	RebuildPath
	api.Idempotent
	IfMatch string `header:"If-Match" doc:"The etag of the difference that was shown: promote no other. Without it, any is promoted."`
	Body    struct {
		Reason string `json:"reason" doc:"The reason, 1 to 500 characters, recorded in the log."`
	} `nameHint:"RebuildDecision"`
}

func (s *handlers) promoteRebuild(ctx context.Context, in *promoteRequest) (*rebuildAccepted, error) {
	shown, err := api.EntityTags(edge.ExchangeOf(ctx).From.Header["If-Match"])
	if err != nil {
		return nil, err
	}
	decision := &decisionRequest{RebuildPath: in.RebuildPath, Body: in.Body}
	if shown == nil {
		return s.Decided(ctx, decision, onceOf, s.Rebuilds.Promote)
	}
	return s.Decided(ctx, decision, onceOf, func(ctx context.Context, req commands.Request, id uuid.UUID, reason string) (domain.Rebuild,
		error) {
		return s.Rebuilds.PromoteShown(ctx, req, id, reason, shown)
	})
}

func (s *handlers) abandonRebuild(ctx context.Context, in *decisionRequest) (*rebuildAccepted, error) {
	return s.Decided(ctx, in, api.ChangeOf, s.Rebuilds.Abandon)
}

func (s *handlers) rollBackRebuild(ctx context.Context, in *decisionRequest) (*rebuildAccepted, error) {
	return s.Decided(ctx, in, api.ChangeOf, s.Rebuilds.RollBack)
}

type decision func(ctx context.Context, req commands.Request, id uuid.UUID, reason string) (domain.Rebuild, error)

// onceOf is changeOf without the state: If-Match of a promotion names that of the difference.
func onceOf(ctx context.Context, _ commands.Ref) (commands.Request, error) {
	x := edge.ExchangeOf(ctx)
	once, err := api.Idempotency(x)
	return x.Request(once), err
}

func (s *handlers) Decided(ctx context.Context, in *decisionRequest, of func(context.Context, commands.Ref) (commands.Request, error),
	decide decision) (*rebuildAccepted, error) {
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
	s.Confirm(ctx)
	return s.accepted(ctx, id)
}
