package http

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	nethttp "net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// readBootstrapKey stores the hash of the configured operator key.
func (s *service) readBootstrapKey() error {
	key := s.BootstrapOperatorKey
	if key == "" {
		return nil
	}
	if !isKey(key) || !strings.HasPrefix(key, "mp_op_") {
		return errors.New("the bootstrap operator key must match ^mp_op_[A-Za-z0-9_-]{32,}$")
	}
	sum := commands.HashSecret(key)
	s.bootstrap = &sum
	return nil
}

// Bounds of a key: 256 random bits need 43 characters. A bootstrap key may be of any
// length up to maxKey; longer keys are not looked up.
const (
	minSecret = 32
	maxKey    = 4 << 10
)

// isKey reports whether key has the form of a key: mp_live_, mp_test_ or mp_op_, then a
// secret.
func isKey(key string) bool {
	rest, ok := strings.CutPrefix(key, "mp_")
	mode, secret, found := strings.Cut(rest, "_")
	if !ok || !found || len(secret) < minSecret || len(key) > maxKey {
		return false
	}
	for _, c := range []byte(secret) {
		if !isAlphanumeric(c) && c != '-' && c != '_' {
			return false
		}
	}
	return mode == "live" || mode == "test" || mode == "op"
}

// bearer returns the key of the Authorization header, or "" unless there is exactly one
// valid header.
func bearer(r *nethttp.Request) string {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return ""
	}
	scheme, key, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || !isKey(key) {
		return ""
	}
	return key
}

// unauthenticated is the answer to every invalid key. It is always the same, so that it
// reveals nothing about existing keys.
func unauthenticated() *Problem {
	return newProblem("unauthenticated", "Send a valid key as Authorization: Bearer mp_…")
}

// authenticate finds the caller and checks that it may call this route.
func (s *service) authenticate(r *nethttp.Request, x *exchange, row *Route) *Problem {
	secret := bearer(r)
	if secret == "" {
		return unauthenticated()
	}
	key, tenant, err := s.findKey(r, commands.HashSecret(secret))
	if err != nil {
		return s.problem(r.Context(), err)
	}
	if key == nil || !key.Usable(s.now()) || (tenant == nil) != (key.TenantID == events.Platform) {
		return unauthenticated()
	}
	x.caller = commands.Caller{TenantID: key.TenantID, KeyID: key.ID, Scopes: key.Scopes, CorrelationID: x.trace}
	x.tenant = tenant
	if tenant != nil {
		x.caller.Residency = tenant.DataResidency
	}
	if tenant != nil && tenant.Status == domain.TenantSuspended {
		return newProblem("tenant_suspended", "The tenant is suspended; its keys are not taken until an operator lifts that")
	}
	return x.authorize(row)
}

// authorize checks the key against the route's row.
func (x *exchange) authorize(row *Route) *Problem {
	if isTenant := x.tenant != nil; isTenant && row.Who == Operator || !isTenant && row.Who == Tenant {
		return newProblem("forbidden", "This route takes "+string(row.Who)+" keys only")
	}
	if !slices.ContainsFunc(row.Scopes, x.caller.Has) {
		return newProblem("forbidden", "The key needs one of the scopes: "+strings.Join(row.Scopes, ", "))
	}
	return nil
}

func (s *service) findKey(r *nethttp.Request, sum [sha256.Size]byte) (*domain.APIKey, *domain.Tenant, error) {
	if s.bootstrap != nil && subtle.ConstantTimeCompare(s.bootstrap[:], sum[:]) == 1 {
		return bootstrapKey(), nil, nil
	}
	return s.Keys.Find(r.Context(), sum)
}

// bootstrapKey is the caller for the configured key. Its id is the same in every
// deployment, so that its actions can be found in the log.
func bootstrapKey() *domain.APIKey {
	return &domain.APIKey{
		ID: uuid.NewSHA1(uuid.NameSpaceURL, []byte("meterplex:bootstrap-operator-key")), TenantID: events.Platform,
		Name: "bootstrap operator key", Mode: "op", Scopes: commands.OperatorScopes(),
	}
}
