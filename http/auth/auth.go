package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/problem"
)

// Authenticator finds the callers of requests.
type Authenticator struct {
	keys      catalogue.Keyring
	bootstrap *[sha256.Size]byte // the hash of the configured operator key
	now       func() time.Time
}

// New fails if the bootstrap operator key is neither empty nor a valid key.
func New(keys catalogue.Keyring, bootstrap string, now func() time.Time) (*Authenticator, error) {
	a := &Authenticator{keys: keys, now: now}
	if bootstrap == "" {
		return a, nil
	}
	if !isKey(bootstrap) || !strings.HasPrefix(bootstrap, "mp_op_") {
		return nil, errors.New("the bootstrap operator key must match ^mp_op_[A-Za-z0-9_-]{32,}$")
	}
	sum := catalogue.HashSecret(bootstrap)
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

// withKey is the context of requests that are made in this process with a key.
type withKey struct{}

// WithKey returns the context of a request in this process that is made with a key, named by the SHA-256 of its
// secret, in place of the header Authorization. Its changes are recorded as made through the console.
func WithKey(ctx context.Context, secretHash [sha256.Size]byte) context.Context {
	return context.WithValue(ctx, withKey{}, secretHash)
}

// hashOf returns the SHA-256 of the key of a request.
func hashOf(r *http.Request) (sum [sha256.Size]byte, inProcess, found bool) {
	if sum, inProcess = r.Context().Value(withKey{}).([sha256.Size]byte); inProcess {
		return sum, true, true
	}
	secret := bearer(r)
	return catalogue.HashSecret(secret), false, secret != ""
}

// Authenticate finds the caller, and its tenant unless it is an operator, and checks that it
// may call the route.
func (a *Authenticator) Authenticate(r *http.Request, route *Route) (by commands.Caller, of *domain.Tenant, err error) {
	sum, inProcess, found := hashOf(r)
	if !found {
		return by, nil, domain.Unauthenticated()
	}
	by, of, err = a.Identify(r.Context(), sum)
	if err != nil {
		return by, of, err
	}
	if inProcess {
		by.Via = events.ViaConsole
	}
	if p := route.Authorize(by, of != nil); p != nil {
		return by, of, p
	}
	return by, of, nil
}

// Identify finds the caller, and its tenant unless it is an operator, by the SHA-256 of the secret of its key.
func (a *Authenticator) Identify(ctx context.Context, secretHash [sha256.Size]byte) (by commands.Caller, of *domain.Tenant, err error) {
	if a.isBootstrap(secretHash) {
		return callerOf(BootstrapKey(), nil), nil, nil
	}
	key, tenant, seen, err := a.keys.Find(ctx, secretHash)
	if err != nil {
		return by, nil, err
	}
	refusal := key.Refuse(tenant, a.now())
	if refusal != nil && refusal.Code == domain.Unauthenticated().Code {
		return by, nil, refusal
	}
	by = callerOf(key, tenant)
	by.Admission = commands.Admission{TenantID: key.TenantID, KeyID: key.ID, Until: key.Until(), Seen: seen}
	if refusal != nil {
		return by, tenant, refusal
	}
	return by, tenant, nil
}

func callerOf(key *domain.APIKey, of *domain.Tenant) commands.Caller {
	by := commands.Caller{TenantID: key.TenantID, KeyID: key.ID, Scopes: key.Scopes}
	if of != nil {
		by.Residency = of.DataResidency
	}
	return by
}

// HashOfSecret returns the SHA-256 of a secret; false if it does not have the form of a key.
func HashOfSecret(secret string) (sum [sha256.Size]byte, ok bool) {
	return catalogue.HashSecret(secret), isKey(secret)
}

// SessionKey returns the id that a session of the console has for its key: the key's, except that a bootstrap operator
// key has an id by its hash, so that another configured key ends the sessions of the last one.
func SessionKey(by commands.Caller, secretHash [sha256.Size]byte) uuid.UUID {
	if by.KeyID == BootstrapKey().ID {
		return uuid.NewSHA1(by.KeyID, secretHash[:])
	}
	return by.KeyID
}

// BootstrapSessionKey is SessionKey of a bootstrap operator key.
func BootstrapSessionKey(secret string) uuid.UUID {
	return SessionKey(commands.Caller{KeyID: BootstrapKey().ID}, catalogue.HashSecret(secret))
}

// HashOfKey returns the SHA-256 of a key's secret by its SessionKey and the stored hash, which a bootstrap operator
// key does not have.
func (a *Authenticator) HashOfKey(id uuid.UUID, stored []byte) (sum [sha256.Size]byte, ok bool) {
	if len(stored) == len(sum) {
		return [sha256.Size]byte(stored), true
	}
	if a.bootstrap != nil && id == SessionKey(commands.Caller{KeyID: BootstrapKey().ID}, *a.bootstrap) {
		return *a.bootstrap, true
	}
	return sum, false
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

func (a *Authenticator) isBootstrap(sum [sha256.Size]byte) bool {
	return a.bootstrap != nil && subtle.ConstantTimeCompare(a.bootstrap[:], sum[:]) == 1
}

func isAlphanumeric(c byte) bool {
	return c-'0' <= 9 || c-'a' <= 'z'-'a' || c-'A' <= 'Z'-'A'
}

// BootstrapKey is the configured operator key.
func BootstrapKey() *domain.APIKey {
	return &domain.APIKey{APIKey: events.APIKey{
		ID: events.BootstrapKeyID, TenantID: events.Platform,
		Name: events.BootstrapKeyName, Prefix: "mp_op_", Mode: "op", Scopes: commands.OperatorScopes(),
	}}
}
