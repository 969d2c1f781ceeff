package tenants

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) portalOperations(t *api.Site) {
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: api.Prefix + "/tenants/{tenantId}/portal-links", Who: auth.Operator,
		Scopes: []string{commands.ScopeAdmin}, ID: "createPortalLink", Reasoned: true, Tag: "Keys", Status: http.StatusCreated,
		Also: http.StatusOK, Summary: "Create a link for a tenant's people",
		Description: "The link opens a page with the usage, the limits and the figures of the tenant, without signing in, until it expires. " +
			"It holds the secret of a key with the scopes usage:read and entitlements:read, so it ends with the key or with the tenant. " +
			"It is in this answer and nowhere else: a repeat under the same Idempotency-Key is answered 200 without it. " +
			"METERPLEX_PORTAL_FRAMES names the sites that may embed the page.",
		Problems: []int{http.StatusNotFound}}, s.createPortalLink)
}

type portalLinkRequest struct {
	api.TenantPath
	api.Idempotent
	Body struct {
		ExpiresInSeconds int64 `json:"expiresInSeconds,omitempty" minimum:"60" maximum:"86400" default:"900"`
	} `nameHint:"NewPortalLink"`
}

type portalLink struct {
	ID        uuid.UUID  `json:"id" format:"uuid" doc:"The key of the link. Its revocation ends the link."`
	ExpiresAt *time.Time `json:"expiresAt" doc:"The end of the link."`
	Secret    string     `json:"secret,omitempty" example:"/console/portal/live_0000000000000000000000000000000000000000000"`
}

type portalLinkAnswer struct {
	Status int
	Body   portalLink
}

func (s *handlers) createPortalLink(ctx context.Context, in *portalLinkRequest) (*portalLinkAnswer, error) {
	req, tenant, err := api.ChangeOne(ctx, in.TenantID, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	k, err := s.Catalogue.CreateKey(ctx, req, tenant,
		catalogue.CreateKey{Name: "Portal link", Scopes: commands.PortalScopes(),
			Lasts: time.Duration(in.Body.ExpiresInSeconds) * time.Second})
	if err != nil {
		return nil, err
	}
	answer := &portalLinkAnswer{Status: http.StatusOK, Body: portalLink{ID: k.ID, ExpiresAt: k.ExpiresAt}}
	if !k.Repeated {
		answer.Status, answer.Body.Secret = http.StatusCreated, commands.PortalPath+strings.TrimPrefix(k.Secret, "mp_")
	}
	return answer, nil
}
