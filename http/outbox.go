package http

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/state"
)

func (s *repairHandlers) outboxOperations(t *site) {
	const path = prefix + "/outbox"
	operators := []string{commands.ScopeBilling, commands.ScopeAudit, commands.ScopeAdmin}
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: operators, id: "getOutbox", tag: "Outbox",
		summary:     "Show how far the log is published",
		description: "For each log partition: the relay's cursor, its lag, the age of the oldest unpublished event, the instance that publishes the partition, and its last error. All in one snapshot."}, s.outbox)
	serve(t, operation{method: http.MethodGet, path: path + "/withheld", who: auth.Operator, scopes: operators, id: "listWithheld", tag: "Outbox",
		summary:     "List withheld records",
		description: "Newest first. A record that the broker refused even alone is replaced on its topic by an empty record; the log keeps the event.",
		problems:    []int{http.StatusNotFound}}, s.listWithheld)
}

type outboxAnswer struct{ Body state.Outbox }

func (s *repairHandlers) outbox(ctx context.Context, _ *struct{}) (*outboxAnswer, error) {
	found, err := s.Reads.State.Outbox(ctx)
	return &outboxAnswer{found}, err
}

type withheldRequest struct {
	TenantID string `query:"tenantId" format:"uuid" doc:"Records of this tenant's events."`
	Topic    string `query:"topic" enum:"usage.raw,usage.validated,usage.dead-letter,usage.duplicates,meterplex.commands,meterplex.catalogue,meterplex.billing,meterplex.notifications,usage.reservations" doc:"Records of this topic."`
	Paging
}

func (s *repairHandlers) listWithheld(ctx context.Context, in *withheldRequest) (*listed[audit.WithheldRecord], error) {
	q := audit.WithheldQuery{Limit: in.Limit}
	q.Topic, _ = events.TopicOf(in.Topic)
	var err error
	if q.TenantID, err = s.optionalTenant(ctx, in.TenantID); err != nil {
		return nil, err
	}
	l := list{"withheld", in.TenantID, in.Topic}
	if _, q.After, err = l.open(in.Cursor); err != nil {
		return nil, err
	}
	found, err := s.Reads.Events.Withheld(ctx, q)
	return &listed[audit.WithheldRecord]{listedFrom(l, found)}, err
}
