package repair

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/state"
)

func (s *handlers) outboxOperations(t *api.Site) {
	const path = api.Prefix + "/outbox"
	operators := []string{commands.ScopeBilling, commands.ScopeAudit, commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: operators, ID: "getOutbox", Tag: "Outbox",
		Summary: "Show how far the log is published",
		Description: "For each log partition: the relay's cursor, its lag, the age of the oldest unpublished event, the instance that " +
			"publishes the partition, and its last error. All in one snapshot."}, s.outbox)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path + "/withheld", Who: auth.Operator, Scopes: operators, ID: "listWithheld",
		Tag:     "Outbox",
		Summary: "List withheld records",
		Description: "Newest first. A record that the broker refused even alone is replaced on its topic by an empty record; the log " +
			"keeps the event.",
		Problems: []int{http.StatusNotFound}}, s.listWithheld)
}

func (s *handlers) outbox(ctx context.Context, _ *struct{}) (*api.Answer[state.Outbox], error) {
	return api.AnswerOf(s.Reads.State.Outbox(ctx))
}

type withheldRequest struct {
	TenantID string `query:"tenantId" format:"uuid" doc:"Records of this tenant's events."`
	Topic    string `query:"topic" enum:"usage.raw,usage.validated,usage.dead-letter,usage.duplicates,meterplex.commands,meterplex.catalogue,meterplex.billing,meterplex.notifications,usage.reservations" doc:"Records of this topic."`
	api.Paging
}

func (s *handlers) listWithheld(ctx context.Context, in *withheldRequest) (*api.Listed[audit.WithheldRecord], error) {
	tenant, err := s.OptionalTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	topic, _ := events.TopicOf(in.Topic)
	l := api.List{"withheld", in.TenantID, in.Topic}
	return api.ListRead(l, in.Paging, func(limit int, after string) (query.Page[audit.WithheldRecord], error) {
		return s.Reads.Events.Withheld(ctx, audit.WithheldQuery{TenantID: tenant, Topic: topic, Limit: limit, After: after})
	})
}
