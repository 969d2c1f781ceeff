package tenants

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) keyOperations(t *api.Site) {
	const tenants, operators = api.Prefix + "/tenants/{tenantId}/api-keys", api.Prefix + "/operator-keys"
	const shown = "The secret is in this answer and nowhere else. A repeat under the same Idempotency-Key is answered 200 without it."
	gone := []int{http.StatusNotFound}
	admins := []string{commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: tenants, Who: auth.Operator, Scopes: admins, ID: "createKey", Reasoned: true,
		Tag: "Keys", Status: http.StatusCreated, Also: http.StatusOK,
		Summary: "Create a key of a tenant", Description: shown, Problems: gone}, s.createTenantKey)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: tenants, Who: auth.Operator, Scopes: admins, ID: "listKeys", Tag: "Keys",
		Summary: "List a tenant's keys", Description: "The keys of a tenant, without their secrets; revoked ones, too.", Problems: gone},
		s.listTenantKeys)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: tenants + "/{keyId}/rotate", Who: auth.Operator, Scopes: admins,
		ID: "rotateKey", Reasoned: true, Tag: "Keys", Status: http.StatusCreated, Also: http.StatusOK,
		Summary: "Replace a key of a tenant", Description: shown, Problems: gone}, s.rotateTenantKey)
	api.Serve(t, api.Operation{Method: http.MethodDelete, Path: tenants + "/{keyId}", Who: auth.Operator, Scopes: admins, ID: "revokeKey",
		Reasoned: true, Tag: "Keys", Summary: "Revoke a key of a tenant",
		Description: "Holds everywhere within a second.", Problems: gone}, s.revokeTenantKey)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: operators, Who: auth.Operator, Scopes: admins, ID: "createOperatorKey",
		Reasoned: true, Tag: "Keys", Status: http.StatusCreated, Also: http.StatusOK,
		Summary: "Create an operator key", Description: shown}, s.createOperatorKey)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: operators, Who: auth.Operator, Scopes: admins, ID: "listOperatorKeys",
		Tag: "Keys", Summary: "List operator keys",
		Description: "All operator keys, without their secrets; revoked ones, and the bootstrap operator key, too."},
		s.listOperatorKeys)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: operators + "/{keyId}/rotate", Who: auth.Operator, Scopes: admins,
		ID: "rotateOperatorKey", Reasoned: true, Tag: "Keys", Status: http.StatusCreated, Also: http.StatusOK,
		Summary: "Replace an operator key", Description: shown, Problems: gone}, s.rotateOperatorKey)
	api.Serve(t, api.Operation{Method: http.MethodDelete, Path: operators + "/{keyId}", Who: auth.Operator, Scopes: admins,
		ID: "revokeOperatorKey", Reasoned: true, Tag: "Keys", Summary: "Revoke an operator key",
		Description: "Holds everywhere within a second.", Problems: gone}, s.revokeOperatorKey)
}

type KeyPath struct {
	KeyID string `path:"keyId" format:"uuid"`
}

// apiKey is a key as answers show it. That of an operator has no tenant; the first answer to its creation has the secret.
type apiKey struct {
	events.APIKey
	TenantID  *uuid.UUID `json:"tenantId,omitempty" format:"uuid" doc:"Absent for an operator key."`
	CreatedAt *time.Time `json:"createdAt" doc:"null for the bootstrap operator key, which is a setting of the service."`
	Secret    string     `json:"secret,omitempty" doc:"Shown once."`
}

func apiKeyOf(k *domain.APIKey) apiKey {
	out := apiKey{APIKey: k.APIKey}
	if k.TenantID != events.Platform {
		out.TenantID = &k.TenantID
	}
	if !k.CreatedAt.IsZero() {
		out.CreatedAt = &k.CreatedAt
	}
	return out
}

// keyAnswer has status 201 with the secret, or 200 without it.
type keyAnswer struct {
	Status int
	Body   apiKey
}

func keyAnswerOf(k catalogue.CreatedKey, err error) (*keyAnswer, error) {
	if err != nil {
		return nil, err
	}
	answer := &keyAnswer{Status: http.StatusCreated, Body: apiKeyOf(&k.APIKey)}
	if answer.Body.Secret = k.Secret; k.Repeated {
		answer.Status, answer.Body.Secret = http.StatusOK, ""
	}
	return answer, nil
}

type newKey struct {
	Name      string       `json:"name" minLength:"1" maxLength:"200"`
	Scopes    tenantScopes `json:"scopes" minItems:"1" maxItems:"10" nullable:"false"`
	Mode      string       `json:"mode,omitempty" enum:"live,test"`
	ExpiresAt string       `json:"expiresAt,omitempty" format:"date-time"`
}

type newOperatorKey struct {
	Name      string         `json:"name" minLength:"1" maxLength:"200"`
	Scopes    operatorScopes `json:"scopes" minItems:"1" maxItems:"10" nullable:"false"`
	ExpiresAt string         `json:"expiresAt,omitempty" format:"date-time"`
}

// tenantScopes and operatorScopes are scopes of a new key.
type (
	tenantScopes   []string
	operatorScopes []string
)

// Schema implements huma.SchemaProvider.
func (tenantScopes) Schema(huma.Registry) *huma.Schema { return api.ListOf(commands.TenantScopes()) }

// Schema implements huma.SchemaProvider.
func (operatorScopes) Schema(huma.Registry) *huma.Schema {
	return api.ListOf(commands.OperatorScopes())
}

// createKey issues a tenant key or an operator key.
func (s *handlers) createKey(ctx context.Context, tenant uuid.UUID, in newKey) (*keyAnswer, error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	command := catalogue.CreateKey{Name: in.Name, Scopes: in.Scopes, Mode: in.Mode}
	if in.ExpiresAt != "" {
		at, fault := domain.ParseTime(in.ExpiresAt)
		if fault != nil {
			return nil, &domain.Error{Code: "expires_at_invalid", Message: fault.Message, Pointer: "/expiresAt"}
		}
		command.ExpiresAt = &at
	}
	return keyAnswerOf(s.Catalogue.CreateKey(ctx, req, tenant, command))
}

type createTenantKeyRequest struct {
	api.TenantPath
	api.Idempotent
	Body newKey
}

func (s *handlers) createTenantKey(ctx context.Context, in *createTenantKeyRequest) (*keyAnswer, error) {
	tenant, err := api.IDOf(in.TenantID, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	return s.createKey(ctx, tenant, in.Body)
}

type createOperatorKeyRequest struct {
	api.Idempotent
	Body newOperatorKey
}

func (s *handlers) createOperatorKey(ctx context.Context, in *createOperatorKeyRequest) (*keyAnswer, error) {
	return s.createKey(ctx, events.Platform, newKey{Name: in.Body.Name, Scopes: tenantScopes(in.Body.Scopes), ExpiresAt: in.Body.ExpiresAt})
}

func (s *handlers) listKeys(ctx context.Context, tenant uuid.UUID, p api.Paging) (*api.Listed[apiKey], error) {
	return api.ListCatalogue(api.List{"keys", tenant.String()}, p, func(p commands.Page) ([]apiKey, error) {
		keys, err := s.Reader.Keys(ctx, tenant, p)
		if tenant == events.Platform && s.BootstrapOperatorKey != "" && events.BootstrapKeyID.String() > p.After {
			keys = withBootstrapKey(keys)
		}
		return api.BodiesOf(keys, apiKeyOf), err
	}, func(k *apiKey) string { return k.ID.String() })
}

// withBootstrapKey adds the configured operator key, which no table has, at its place by its id.
func withBootstrapKey(keys []domain.APIKey) []domain.APIKey {
	key := auth.BootstrapKey()
	i, _ := slices.BinarySearchFunc(keys, key.ID, func(k domain.APIKey, id uuid.UUID) int { return bytes.Compare(k.ID[:], id[:]) })
	return slices.Insert(keys, i, *key)
}

type tenantListRequest struct {
	api.TenantPath
	api.Paging
}

func (s *handlers) listTenantKeys(ctx context.Context, in *tenantListRequest) (*api.Listed[apiKey], error) {
	tenant, err := s.KnownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return s.listKeys(ctx, tenant.ID, in.Paging)
}

func (s *handlers) listOperatorKeys(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[apiKey], error) {
	return s.listKeys(ctx, events.Platform, in.Paging)
}

type overlap struct {
	OverlapSeconds int64 `json:"overlapSeconds" minimum:"0" maximum:"2592000" doc:"How long the old key goes on; 0 ends it at once."`
}

func (s *handlers) rotateKey(ctx context.Context, tenant uuid.UUID, named string, o overlap) (*keyAnswer, error) {
	req, key, err := api.ChangeOne(ctx, named, "key_not_found")
	if err != nil {
		return nil, err
	}
	return keyAnswerOf(s.Catalogue.RotateKey(ctx, req, tenant, key, time.Duration(o.OverlapSeconds)*time.Second))
}

type rotateTenantKeyRequest struct {
	api.TenantPath
	KeyPath
	api.Idempotent
	Body overlap
}

func (s *handlers) rotateTenantKey(ctx context.Context, in *rotateTenantKeyRequest) (*keyAnswer, error) {
	tenant, err := api.IDOf(in.TenantID, "key_not_found")
	if err != nil {
		return nil, err
	}
	return s.rotateKey(ctx, tenant, in.KeyID, in.Body)
}

type rotateOperatorKeyRequest struct {
	KeyPath
	api.Idempotent
	Body overlap
}

func (s *handlers) rotateOperatorKey(ctx context.Context, in *rotateOperatorKeyRequest) (*keyAnswer, error) {
	return s.rotateKey(ctx, events.Platform, in.KeyID, in.Body)
}

func (s *handlers) revokeKey(ctx context.Context, tenant uuid.UUID, named string) (*struct{}, error) {
	req, key, err := api.ChangeOne(ctx, named, "key_not_found")
	if err != nil {
		return nil, err
	}
	return &struct{}{}, s.Catalogue.RevokeKey(ctx, req, tenant, key)
}

type tenantKeyRequest struct {
	api.TenantPath
	KeyPath
	api.Idempotent
}

func (s *handlers) revokeTenantKey(ctx context.Context, in *tenantKeyRequest) (*struct{}, error) {
	tenant, err := api.IDOf(in.TenantID, "key_not_found")
	if err != nil {
		return nil, err
	}
	return s.revokeKey(ctx, tenant, in.KeyID)
}

type operatorKeyRequest struct {
	KeyPath
	api.Idempotent
}

func (s *handlers) revokeOperatorKey(ctx context.Context, in *operatorKeyRequest) (*struct{}, error) {
	return s.revokeKey(ctx, events.Platform, in.KeyID)
}
