package catalogue

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// CreateKey is a request for a key. Mode is that of the tenant, or "", and empty
// for operator keys.
type CreateKey struct {
	Name      string
	Scopes    []string
	Mode      string
	ExpiresAt *time.Time
	Lasts     time.Duration // the time until it expires, instead of ExpiresAt; 0: not given
}

// CreatedKey is a new key with its secret. The secret is not stored, so it is empty
// if the request is repeated.
type CreatedKey struct {
	domain.APIKey
	Secret   string `json:"-"`
	Repeated bool   `json:"-"`
}

// MaxOverlap is the longest time that a rotated key may stay valid with the new one.
const MaxOverlap = 30 * 24 * time.Hour

// shownPrefix is the length of the secret's part that may be shown, after mp_live_.
const shownPrefix = 8

// Keyring finds keys.
type Keyring interface {
	// Find returns the key with the secret's SHA-256, and its tenant (nil for
	// operator keys), and how far the catalogue of its partition had come while they were so;
	// nil, nil if the key is unknown. The result is at most a second old;
	// if that cannot be confirmed, Find returns ErrUnavailable.
	Find(ctx context.Context, secretHash [32]byte) (*domain.APIKey, *domain.Tenant, commands.CatalogueAt, error)
}

// HashSecret returns the stored form of a key: the SHA-256 of its whole text. A key
// has 256 random bits, so a slow hash would not make it safer.
func HashSecret(secret string) [32]byte { return sha256.Sum256([]byte(secret)) }

// CreateKey makes a tenant key, or an operator key if tenant is Platform.
func (c *Commands) CreateKey(ctx context.Context, req commands.Request, tenant uuid.UUID, in CreateKey) (CreatedKey, error) {
	if err := checkKey(tenant, &in); err != nil {
		return CreatedKey{}, err
	}
	return c.issue(ctx, req, tenant, func(tx Tx) (CreatedKey, error) {
		if in.Lasts > 0 {
			in.ExpiresAt = new(c.now().Add(in.Lasts))
		}
		// Checked here and not earlier, so that a late repetition gets the first answer.
		if in.ExpiresAt != nil && !in.ExpiresAt.After(c.Now()) {
			return CreatedKey{}, domain.Refuse("expires_at_invalid", "/expiresAt", "expiresAt must lie in the future")
		}
		if tenant != events.Platform {
			t, err := commands.Changeable(tx, tenant)
			if err != nil {
				return CreatedKey{}, err
			}
			if in.Mode != "" && in.Mode != t.Mode {
				return CreatedKey{}, domain.Refuse("mode_invalid", "/mode",
					"mode %s is not that of the tenant, which is a %s tenant: leave mode out, or create a %s tenant for such keys", in.Mode,
					t.Mode, in.Mode)
			}
			in.Mode = t.Mode
		}
		k := c.newKey(tenant, in)
		return k, c.recordKey(tx, &req, events.APIKeyCreated, &k, k.APIKey.APIKey)
	})
}

// issue runs decide to make a key. A repetition has no secret, because the service does not store it.
func (c *Commands) issue(ctx context.Context, req commands.Request, tenant uuid.UUID, decide func(Tx) (CreatedKey, error)) (CreatedKey,
	error) {
	k, err := commands.Change(c.changing(ctx, tenant), req, decide)
	k.Repeated = err == nil && k.Secret == ""
	return k, err
}

func checkKey(tenant uuid.UUID, in *CreateKey) error {
	if err := checkName(in.Name); err != nil {
		return err
	}
	allowed := commands.TenantScopes()
	if tenant == events.Platform {
		allowed, in.Mode = commands.OperatorScopes(), "op"
	} else if in.Mode != "" {
		if err := commands.OneOf(in.Mode, "mode_invalid", "/mode", domain.ModeLive, domain.ModeTest); err != nil {
			return err
		}
	}
	if len(in.Scopes) == 0 {
		return domain.Refuse("scopes_invalid", "/scopes", "a key needs at least one scope of %v", allowed)
	}
	for i, s := range in.Scopes {
		if !slices.Contains(allowed, s) || slices.Contains(in.Scopes[:i], s) {
			return domain.Refuse("scopes_invalid", "/scopes", "scopes must be different ones of %v", allowed)
		}
	}
	return nil
}

func (c *Commands) newKey(tenant uuid.UUID, in CreateKey) CreatedKey {
	random := c.NewSecret()
	prefix := "mp_" + in.Mode + "_"
	secret := prefix + base64.RawURLEncoding.EncodeToString(random[:])
	return CreatedKey{Secret: secret, APIKey: domain.APIKey{APIKey: events.APIKey{
		ID: c.NewID(), TenantID: tenant, Name: in.Name, Prefix: secret[:len(prefix)+shownPrefix], Mode: in.Mode,
		Scopes: in.Scopes, CreatedAt: c.now(), ExpiresAt: in.ExpiresAt,
	}}}
}

// recordKey records the event of a new key, and saves the hash of its secret, which no event holds.
func (c *Commands) recordKey(tx Tx, req *commands.Request, subject events.Subject, k *CreatedKey, payload any) error {
	if _, err := commands.AppendEvent(tx, req, c.NewID(), k.CreatedAt, k.TenantID, subject, payload); err != nil {
		return err
	}
	hash := HashSecret(k.Secret)
	return tx.SaveSecret(k.ID, hash[:])
}

// RotateKey makes a key with the properties of an old one, which ends after overlap.
func (c *Commands) RotateKey(ctx context.Context, req commands.Request, tenant, keyID uuid.UUID, overlap time.Duration) (CreatedKey,
	error) {
	if overlap < 0 || overlap > MaxOverlap {
		return CreatedKey{}, domain.Refuse("overlap_invalid", "/overlapSeconds", "overlapSeconds must be 0 to %d",
			int(MaxOverlap.Seconds()))
	}
	return c.issue(ctx, req, tenant, func(tx Tx) (CreatedKey, error) {
		old, err := c.loadKey(tx, tenant, keyID)
		if err != nil {
			return CreatedKey{}, err
		}
		if err := commands.RefuseOffboarding(tx, tenant); err != nil {
			return CreatedKey{}, err
		}
		if !old.Usable(c.now()) {
			return CreatedKey{}, domain.Refuse("key_not_usable", "", "the key is revoked or expired; create a new one")
		}
		k := c.newKey(tenant, CreateKey{Name: old.Name, Scopes: old.Scopes, Mode: old.Mode, ExpiresAt: old.ExpiresAt})
		old.End(k.CreatedAt, overlap)
		return k, c.recordKey(tx, &req, events.APIKeyRotated, &k, events.APIKeyRotation{New: k.APIKey.APIKey, Old: old.APIKey})
	})
}

// EndKey ends a key at once.
func (c *Commands) EndKey(tx Tx, req *commands.Request, k *domain.APIKey) error {
	now := c.now()
	k.End(now, 0)
	_, err := commands.AppendEvent(tx, req, c.NewID(), now, k.TenantID, events.APIKeyRevoked, k.APIKey)
	return err
}

// RevokeKey ends a key now, on all instances within a second. A repetition has
// no effect.
func (c *Commands) RevokeKey(ctx context.Context, req commands.Request, tenant, keyID uuid.UUID) error {
	_, err := commands.Change(c.changing(ctx, tenant), req, func(tx Tx) (none struct{}, err error) {
		k, err := c.loadKey(tx, tenant, keyID)
		if err != nil || k.Ended {
			return none, err
		}
		return none, c.EndKey(tx, &req, k)
	})
	return err
}

func (c *Commands) loadKey(tx Tx, tenant, keyID uuid.UUID) (*domain.APIKey, error) {
	k, err := tx.Key(keyID)
	if err == nil && (k == nil || k.TenantID != tenant) {
		err = domain.Refuse("key_not_found", "", "no such key")
	}
	return k, err
}
