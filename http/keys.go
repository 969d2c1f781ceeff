package http

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

func (s *tenantsHandlers) keyOperations(t *site) {
	const tenants, operators = prefix + "/tenants/{tenantId}/api-keys", prefix + "/operator-keys"
	const shown = "The secret is in this answer and nowhere else. A repeat under the same Idempotency-Key is answered 200 without it."
	gone := []int{http.StatusNotFound}
	admins := []string{commands.ScopeAdmin}
	serve(t, operation{method: http.MethodPost, path: tenants, who: auth.Operator, scopes: admins, id: "createKey", reasoned: true, tag: "Keys", status: http.StatusCreated, also: http.StatusOK,
		summary: "Create a key of a tenant", description: shown, problems: gone}, s.createTenantKey)
	serve(t, operation{method: http.MethodGet, path: tenants, who: auth.Operator, scopes: admins, id: "listKeys", tag: "Keys", summary: "List a tenant's keys", description: "The keys of a tenant, without their secrets; revoked ones, too.", problems: gone}, s.listTenantKeys)
	serve(t, operation{method: http.MethodPost, path: tenants + "/{keyId}/rotate", who: auth.Operator, scopes: admins, id: "rotateKey", reasoned: true, tag: "Keys", status: http.StatusCreated, also: http.StatusOK,
		summary: "Replace a key of a tenant", description: shown, problems: gone}, s.rotateTenantKey)
	serve(t, operation{method: http.MethodDelete, path: tenants + "/{keyId}", who: auth.Operator, scopes: admins, id: "revokeKey", reasoned: true, tag: "Keys", summary: "Revoke a key of a tenant",
		description: "Holds everywhere within a second.", problems: gone}, s.revokeTenantKey)
	serve(t, operation{method: http.MethodPost, path: operators, who: auth.Operator, scopes: admins, id: "createOperatorKey", reasoned: true, tag: "Keys", status: http.StatusCreated, also: http.StatusOK,
		summary: "Create an operator key", description: shown}, s.createOperatorKey)
	serve(t, operation{method: http.MethodGet, path: operators, who: auth.Operator, scopes: admins, id: "listOperatorKeys", tag: "Keys", summary: "List operator keys", description: "All operator keys, without their secrets; revoked ones, too."}, s.listOperatorKeys)
	serve(t, operation{method: http.MethodPost, path: operators + "/{keyId}/rotate", who: auth.Operator, scopes: admins, id: "rotateOperatorKey", reasoned: true, tag: "Keys", status: http.StatusCreated, also: http.StatusOK,
		summary: "Replace an operator key", description: shown, problems: gone}, s.rotateOperatorKey)
	serve(t, operation{method: http.MethodDelete, path: operators + "/{keyId}", who: auth.Operator, scopes: admins, id: "revokeOperatorKey", reasoned: true, tag: "Keys", summary: "Revoke an operator key",
		description: "Holds everywhere within a second.", problems: gone}, s.revokeOperatorKey)
}

type KeyPath struct {
	KeyID string `path:"keyId" format:"uuid"`
}

// apiKey is a key as answers show it. That of an operator has no tenant; the first answer to its creation has the secret.
type apiKey struct {
	events.APIKey
	TenantID *uuid.UUID `json:"tenantId,omitempty" format:"uuid" doc:"Absent for an operator key."`
	Secret   string     `json:"secret,omitempty" doc:"Shown once."`
}

func apiKeyOf(k *domain.APIKey) apiKey {
	out := apiKey{APIKey: k.APIKey}
	if k.TenantID != events.Platform {
		out.TenantID = &k.TenantID
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
	Name      string   `json:"name" minLength:"1" maxLength:"200"`
	Scopes    []string `json:"scopes" minItems:"1" maxItems:"10" nullable:"false" enum:"usage:write,usage:backfill,usage:read,entitlements:read,entitlements:reserve,events:read,webhooks:manage"`
	Mode      string   `json:"mode,omitempty" enum:"live,test" doc:"live or test: that of the tenant, which is the default. Another is 400."`
	ExpiresAt string   `json:"expiresAt,omitempty" format:"date-time"`
}

type newOperatorKey struct {
	Name      string   `json:"name" minLength:"1" maxLength:"200"`
	Scopes    []string `json:"scopes" minItems:"1" maxItems:"10" nullable:"false" enum:"admin,billing,audit"`
	ExpiresAt string   `json:"expiresAt,omitempty" format:"date-time"`
}

// createKey issues a tenant key or an operator key.
func (s *tenantsHandlers) createKey(ctx context.Context, tenant uuid.UUID, in newKey) (*keyAnswer, error) {
	once, err := once(ctx)
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
	return keyAnswerOf(s.Catalogue.CreateKey(ctx, edge.ExchangeOf(ctx).Request(once), tenant, command))
}

type createTenantKeyRequest struct {
	TenantPath
	Idempotent
	Body newKey
}

func (s *tenantsHandlers) createTenantKey(ctx context.Context, in *createTenantKeyRequest) (*keyAnswer, error) {
	tenant, err := idOf(in.TenantID, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	return s.createKey(ctx, tenant, in.Body)
}

type createOperatorKeyRequest struct {
	Idempotent
	Body newOperatorKey
}

func (s *tenantsHandlers) createOperatorKey(ctx context.Context, in *createOperatorKeyRequest) (*keyAnswer, error) {
	return s.createKey(ctx, events.Platform, newKey{Name: in.Body.Name, Scopes: in.Body.Scopes, ExpiresAt: in.Body.ExpiresAt})
}

func (s *tenantsHandlers) listKeys(ctx context.Context, tenant uuid.UUID, p Paging) (*listed[apiKey], error) {
	return listCatalogue(list{"keys", tenant.String()}, p, func(p commands.Page) ([]apiKey, error) {
		keys, err := s.Reader.Keys(ctx, tenant, p)
		return bodiesOf(keys, apiKeyOf), err
	}, func(k *apiKey) string { return k.ID.String() })
}

type tenantListRequest struct {
	TenantPath
	Paging
}

func (s *tenantsHandlers) listTenantKeys(ctx context.Context, in *tenantListRequest) (*listed[apiKey], error) {
	tenant, err := s.knownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return s.listKeys(ctx, tenant.ID, in.Paging)
}

func (s *tenantsHandlers) listOperatorKeys(ctx context.Context, in *struct{ Paging }) (*listed[apiKey], error) {
	return s.listKeys(ctx, events.Platform, in.Paging)
}

type overlap struct {
	OverlapSeconds int64 `json:"overlapSeconds" minimum:"0" maximum:"2592000" doc:"How long the old key goes on; 0 ends it at once."`
}

func (s *tenantsHandlers) rotateKey(ctx context.Context, tenant uuid.UUID, keyID string, o overlap) (*keyAnswer, error) {
	key, err := idOf(keyID, "key_not_found")
	if err != nil {
		return nil, err
	}
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	return keyAnswerOf(s.Catalogue.RotateKey(ctx, edge.ExchangeOf(ctx).Request(once), tenant, key, time.Duration(o.OverlapSeconds)*time.Second))
}

type rotateTenantKeyRequest struct {
	TenantPath
	KeyPath
	Idempotent
	Body overlap
}

func (s *tenantsHandlers) rotateTenantKey(ctx context.Context, in *rotateTenantKeyRequest) (*keyAnswer, error) {
	tenant, err := idOf(in.TenantID, "key_not_found")
	if err != nil {
		return nil, err
	}
	return s.rotateKey(ctx, tenant, in.KeyID, in.Body)
}

type rotateOperatorKeyRequest struct {
	KeyPath
	Idempotent
	Body overlap
}

func (s *tenantsHandlers) rotateOperatorKey(ctx context.Context, in *rotateOperatorKeyRequest) (*keyAnswer, error) {
	return s.rotateKey(ctx, events.Platform, in.KeyID, in.Body)
}

func (s *tenantsHandlers) revokeKey(ctx context.Context, tenant uuid.UUID, keyID string) (*struct{}, error) {
	key, err := idOf(keyID, "key_not_found")
	if err != nil {
		return nil, err
	}
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	return &struct{}{}, s.Catalogue.RevokeKey(ctx, edge.ExchangeOf(ctx).Request(once), tenant, key)
}

type tenantKeyRequest struct {
	TenantPath
	KeyPath
	Idempotent
}

func (s *tenantsHandlers) revokeTenantKey(ctx context.Context, in *tenantKeyRequest) (*struct{}, error) {
	tenant, err := idOf(in.TenantID, "key_not_found")
	if err != nil {
		return nil, err
	}
	return s.revokeKey(ctx, tenant, in.KeyID)
}

type operatorKeyRequest struct {
	KeyPath
	Idempotent
}

func (s *tenantsHandlers) revokeOperatorKey(ctx context.Context, in *operatorKeyRequest) (*struct{}, error) {
	return s.revokeKey(ctx, events.Platform, in.KeyID)
}
