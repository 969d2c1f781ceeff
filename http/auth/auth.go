package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/problem"
)

// Authenticator finds the callers of requests.
type Authenticator struct {
	keys      commands.Keyring
	bootstrap *[sha256.Size]byte // the hash of the configured operator key
	now       func() time.Time
}

// New fails if the bootstrap operator key is neither empty nor a valid key.
func New(keys commands.Keyring, bootstrap string, now func() time.Time) (*Authenticator, error) {
	a := &Authenticator{keys: keys, now: now}
	if bootstrap == "" {
		return a, nil
	}
	if !isKey(bootstrap) || !strings.HasPrefix(bootstrap, "mp_op_") {
		return nil, errors.New("the bootstrap operator key must match ^mp_op_[A-Za-z0-9_-]{32,}$")
	}
	sum := commands.HashSecret(bootstrap)
	a.bootstrap = &sum
	return a, nil
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
func bearer(r *http.Request) string {
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
// does not reveal whether a key exists.
func unauthenticated() *problem.Problem {
	return problem.New("unauthenticated", "Send a valid key as Authorization: Bearer mp_…")
}

// Authenticate finds the caller, and its tenant unless it is an operator, and checks that it
// may call the route.
func (a *Authenticator) Authenticate(r *http.Request, route *Route) (by commands.Caller, of *domain.Tenant, err error) {
	secret := bearer(r)
	if secret == "" {
		return by, nil, unauthenticated()
	}
	key, tenant, err := a.findKey(r, commands.HashSecret(secret))
	if err != nil {
		return by, nil, err
	}
	if key == nil || !key.Usable(a.now()) || (tenant == nil) != (key.TenantID == events.Platform) {
		return by, nil, unauthenticated()
	}
	if tenant != nil && tenant.Status == domain.TenantArchived { // its keys are revoked, too
		return by, nil, unauthenticated()
	}
	by = commands.Caller{TenantID: key.TenantID, KeyID: key.ID, Scopes: key.Scopes}
	if tenant != nil {
		by.Residency = tenant.DataResidency
	}
	if tenant != nil && tenant.Status == domain.TenantSuspended {
		return by, tenant, problem.New("tenant_suspended", "The tenant is suspended; its keys are refused until an operator activates it")
	}
	if p := route.Authorize(by, tenant != nil); p != nil {
		return by, tenant, p
	}
	return by, tenant, nil
}

// Authorize checks that a key of a tenant, or of an operator, may call the route.
func (r *Route) Authorize(by commands.Caller, isTenant bool) *problem.Problem {
	if isTenant && r.Who == Operator || !isTenant && r.Who == Tenant {
		return problem.New("forbidden", "This route takes "+string(r.Who)+" keys only")
	}
	if r.Who != AnyKey && !slices.ContainsFunc(r.Scopes, by.Has) {
		return problem.New("forbidden", "The key needs one of the scopes: "+strings.Join(r.Scopes, ", "))
	}
	return nil
}

func (a *Authenticator) findKey(r *http.Request, sum [sha256.Size]byte) (*domain.APIKey, *domain.Tenant, error) {
	if a.bootstrap != nil && subtle.ConstantTimeCompare(a.bootstrap[:], sum[:]) == 1 {
		return bootstrapKey(), nil, nil
	}
	return a.keys.Find(r.Context(), sum)
}

func isAlphanumeric(c byte) bool {
	return c-'0' <= 9 || c-'a' <= 'z'-'a' || c-'A' <= 'Z'-'A'
}

// bootstrapKey is the caller for the configured key. Its id is the same in every
// deployment, so that its actions can be found in the log.
func bootstrapKey() *domain.APIKey {
	return &domain.APIKey{
		ID: uuid.NewSHA1(uuid.NameSpaceURL, []byte("meterplex:bootstrap-operator-key")), TenantID: events.Platform,
		Name: "bootstrap operator key", Mode: "op", Scopes: commands.OperatorScopes(),
	}
}
