// Package tenants answers the operations of tenants, and of their keys, subscriptions, webhooks, thresholds and end.
package tenants

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/query"
)

func (s *handlers) tenantOperations(t *api.Site) {
	const path, one = api.Prefix + "/tenants", api.Prefix + "/tenants/{tenantId}"
	admins := []string{commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path, Who: auth.Operator, Scopes: admins, ID: "createTenant", Reasoned: true,
		Tag: "Tenants", Status: http.StatusCreated,
		Summary: "Create a tenant", Description: "A tenant begins without a subscription and without keys: create both before it " +
			"sends usage."}, s.createTenant)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: admins, ID: "listTenants", Tag: "Tenants",
		Summary: "List tenants", Description: "All tenants, by id, which is the order of their creation; with q those whose name or " +
			"external ids contain a text, or whose id begins with it, with externalId the one tenant that has it, and with eventId those " +
			"that recorded usage with this eventId. With eventId a page of `limit` tenants is searched at a time: it may hold " +
			"fewer tenants, or be empty, and still have a nextCursor."}, s.listTenants)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: admins, ID: "getTenant", Tag: "Tenants",
		Summary: "Read a tenant", Description: "A tenant by its id.",
		Problems: []int{http.StatusNotFound}}, s.getTenant)
	api.Serve(t, api.Operation{Method: http.MethodPatch, Path: one, Who: auth.Operator, Scopes: admins, ID: "changeTenant", Reasoned: true,
		Tag: "Tenants", Summary: "Change a tenant",
		Description: "The keys of a SUSPENDED tenant are answered 403 `tenant_suspended`.", Problems: []int{http.StatusNotFound}},
		s.changeTenant)
}

type tenantAnswer struct {
	ETag string `header:"ETag" doc:"Of a read: the tag of this state, for If-Match."`
	Body domain.Tenant
}

func tenantRef(id uuid.UUID) commands.Ref {
	return commands.Ref{Of: commands.EntityTenant, ID: id.String()}
}

type createTenantRequest struct {
	api.Idempotent
	Body struct {
		Name          string `json:"name" minLength:"1" maxLength:"200"`
		Class         string `json:"class" enum:"small,medium,large"`
		Mode          string `json:"mode,omitempty" enum:"live,test" default:"live"`
		DataResidency string `json:"dataResidency,omitempty" minLength:"1" maxLength:"32" pattern:"^[a-z][a-z0-9-]{0,31}$" example:"eu-central-1"`

		ExternalIDs []string          `json:"externalIds,omitempty" nullable:"false" maxItems:"16" example:"[\"crm-4711\"]"`
		Metadata    map[string]string `json:"metadata,omitempty" example:"{\"segment\":\"retail\"}"`
	} `nameHint:"NewTenant"`
}

func (s *handlers) createTenant(ctx context.Context, in *createTenantRequest) (*tenantAnswer, error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	t, err := s.Catalogue.CreateTenant(ctx, req, catalogue.CreateTenant{
		Name: in.Body.Name, Class: in.Body.Class, Mode: in.Body.Mode, DataResidency: in.Body.DataResidency,
		ExternalIDs: in.Body.ExternalIDs, Metadata: in.Body.Metadata,
	})
	return &tenantAnswer{Body: t}, err
}

// maxSearch bounds the text of a search: no longer name or id exists.
const maxSearch = 255

type listTenantsRequest struct {
	api.Paging
	Query      string `query:"q" minLength:"1" maxLength:"255" example:"acme"`
	ExternalID string `query:"externalId" minLength:"1" maxLength:"255" pattern:"^[!-~]{1,255}$" example:"crm-4711"`
	EventID    string `query:"eventId" minLength:"1" maxLength:"255" pattern:"^[!-~]{1,255}$" doc:"Only tenants with usage of this eventId." example:"order-4711"`
}

func (s *handlers) listTenants(ctx context.Context, in *listTenantsRequest) (*api.Listed[domain.Tenant], error) {
	l, read := api.List{"tenants"}, func(p commands.Page) ([]domain.Tenant, error) { return s.Reader.Tenants(ctx, p) }
	for name, id := range map[string]string{"externalId": in.ExternalID, "eventId": in.EventID} {
		if id != "" && !catalogue.IsExternalID(id) { // an eventId has the same form
			return nil, problem.New("parameter_invalid", name+" must be 1 to 255 printable ASCII characters without space")
		}
	}
	switch {
	case in.Query != "" && in.ExternalID != "":
		return nil, problem.New("parameter_invalid", "q and externalId both select tenants; give one of them")
	case utf8.RuneCountInString(in.Query) > maxSearch || !query.Storable(in.Query):
		return nil, problem.New("parameter_invalid", "q must be 1 to 255 characters without NUL")
	case in.Query != "":
		l, read = append(l, "q", in.Query), func(p commands.Page) ([]domain.Tenant, error) { return s.Reader.FindTenants(ctx, in.Query, p) }
	}
	if in.ExternalID != "" {
		l, read = append(l, in.ExternalID), func(commands.Page) ([]domain.Tenant, error) {
			t, err := s.Reader.TenantOfExternalID(ctx, in.ExternalID)
			if t == nil {
				return []domain.Tenant{}, err
			}
			return []domain.Tenant{*t}, err
		}
	}
	if in.EventID != "" {
		l = append(l, "event", in.EventID)
	}
	page, err := api.ListCatalogue(l, in.Paging, read,
		func(t *domain.Tenant) string { return t.ID.String() })
	if err != nil || in.EventID == "" {
		return page, err
	}
	page.Body.Data, err = s.recorders(ctx, in.EventID, page.Body.Data)
	return page, err
}

// recorders returns those of the tenants that recorded usage with an eventId.
func (s *handlers) recorders(ctx context.Context, eventID string, tenants []domain.Tenant) ([]domain.Tenant, error) {
	ids := make([]uuid.UUID, len(tenants))
	for i := range tenants {
		ids[i] = tenants[i].ID
	}
	found, err := s.Reads.Events.Recorders(ctx, query.Viewer{Operator: true}, eventID, ids)
	return slices.DeleteFunc(tenants, func(t domain.Tenant) bool { return !slices.Contains(found, t.ID) }), err
}

func (s *handlers) getTenant(ctx context.Context, in *struct{ api.TenantPath }) (*tenantAnswer, error) {
	id, err := api.IDOf(in.TenantID, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	tag, err := s.TagOf(ctx, tenantRef(id))
	if err != nil {
		return nil, err
	}
	t, err := s.KnownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return &tenantAnswer{tag, *t}, nil
}

type changeTenantRequest struct {
	api.TenantPath
	api.Idempotent
	api.Conditional
	Body struct {
		Name          *string `json:"name,omitempty" minLength:"1" maxLength:"200"`
		Class         *string `json:"class,omitempty" enum:"small,medium,large"`
		Status        *string `json:"status,omitempty" enum:"ACTIVE,SUSPENDED" doc:"ACTIVE, or SUSPENDED: its keys are refused within a second."`
		DataResidency *string `json:"dataResidency,omitempty" minLength:"1" maxLength:"32" pattern:"^[a-z][a-z0-9-]{0,31}$" doc:"A new data residency, e.g. eu-central-1. Events keep the residency that they were recorded under." example:"eu-central-1"`

		ExternalIDs *[]string          `json:"externalIds,omitempty" nullable:"false" maxItems:"16" example:"[\"crm-4711\"]"`
		Metadata    *map[string]string `json:"metadata,omitempty" example:"{\"segment\":\"retail\"}"`

		LateUsage       *string       `json:"lateUsage,omitempty" enum:"REJECT,ADJUST"`
		CloseAfterHours clearableHour `json:"closeAfterHours,omitempty,omitzero"`
	} `nameHint:"TenantChange"`
}

// clearableHour is a number of hours that null clears. sent is nil if the member is absent.
type clearableHour struct{ sent **int }

// UnmarshalJSON implements json.Unmarshaler. It is called for null, too.
func (h *clearableHour) UnmarshalJSON(text []byte) error {
	h.sent = new(*int)
	return json.Unmarshal(text, h.sent)
}

// MarshalJSON implements json.Marshaler.
func (h clearableHour) MarshalJSON() ([]byte, error) { return json.Marshal(h.sent) }

// Schema implements huma.SchemaProvider.
func (clearableHour) Schema(huma.Registry) *huma.Schema {
	least, most := 1.0, float64(catalogue.MaxCloseAfterHours)
	return &huma.Schema{Type: huma.TypeInteger, Minimum: &least, Maximum: &most, Nullable: true}
}

func (s *handlers) changeTenant(ctx context.Context, in *changeTenantRequest) (*tenantAnswer, error) {
	id, err := api.IDOf(in.TenantID, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	req, err := api.ChangeOf(ctx, tenantRef(id))
	if err != nil {
		return nil, err
	}
	t, err := s.Catalogue.ChangeTenant(ctx, req, id,
		catalogue.ChangeTenant{Name: in.Body.Name, Class: in.Body.Class, Status: in.Body.Status, DataResidency: in.Body.DataResidency,
			ExternalIDs: in.Body.ExternalIDs, Metadata: in.Body.Metadata, LateUsage: in.Body.LateUsage,
			CloseAfterHours: in.Body.CloseAfterHours.sent})
	return &tenantAnswer{Body: t}, err
}
