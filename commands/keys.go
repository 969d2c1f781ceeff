package commands

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"time"

	"github.com/google/uuid"

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
}

// CreatedKey is a new key with its secret. The secret is not stored, so it is empty
// if the request is repeated.
type CreatedKey struct {
	domain.APIKey
	Secret   string `json:"-"`
	Repeated bool   `json:"-"`
}

// KeyTx is the transaction of a change of a key.
type KeyTx interface {
	Tx
	Offboardings
	Key(id uuid.UUID) (*domain.APIKey, error)
	// SaveKey saves a key; secretHash is nil if the key exists already.
	SaveKey(k domain.APIKey, secretHash []byte) error
}

func (c *Catalogue) changeOfKey(ctx context.Context, tenant uuid.UUID) transaction[KeyTx] {
	return func(decide func(KeyTx) error) error {
		return c.Store.ChangeCatalogue(ctx, tenant, func(tx CatalogueTx) error { return decide(tx) })
	}
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
	Find(ctx context.Context, secretHash [32]byte) (*domain.APIKey, *domain.Tenant, CatalogueAt, error)
}

// HashSecret returns the stored form of a key: the SHA-256 of its whole text. A key
// has 256 random bits, so a slow hash would not make it safer.
func HashSecret(secret string) [32]byte { return sha256.Sum256([]byte(secret)) }

// CreateKey makes a tenant key, or an operator key if tenant is Platform.
func (c *Catalogue) CreateKey(ctx context.Context, req Request, tenant uuid.UUID, in CreateKey) (CreatedKey, error) {
	if err := checkKey(tenant, &in); err != nil {
		return CreatedKey{}, err
	}
	return c.issue(ctx, req, tenant, func(tx KeyTx) (CreatedKey, error) {
		// Checked here and not earlier, so that a late repetition gets the first answer.
		if in.ExpiresAt != nil && !in.ExpiresAt.After(c.Now()) {
			return CreatedKey{}, refuse("expires_at_invalid", "/expiresAt", "expiresAt must lie in the future")
		}
		if tenant != events.Platform {
			t, err := changeable(tx, tenant)
			if err != nil {
				return CreatedKey{}, err
			}
			if in.Mode != "" && in.Mode != t.Mode {
				return CreatedKey{}, refuse("mode_invalid", "/mode", "mode %s is not that of the tenant, which is a %s tenant: leave mode out, or create a %s tenant for such keys", in.Mode, t.Mode, in.Mode)
			}
			in.Mode = t.Mode
		}
		k, err := c.newKey(tx, tenant, in)
		if err != nil {
			return k, err
		}
		_, err = c.record(tx, &req, tenant, events.APIKeyCreated, k.Payload())
		return k, err
	})
}

// issue runs decide to make a key. A repetition has no secret, because the service does not store it.
func (c *Catalogue) issue(ctx context.Context, req Request, tenant uuid.UUID, decide func(KeyTx) (CreatedKey, error)) (CreatedKey, error) {
	k, err := change(c.changeOfKey(ctx, tenant), req, decide)
	k.Repeated = err == nil && k.Secret == ""
	return k, err
}

func checkKey(tenant uuid.UUID, in *CreateKey) error {
	if err := checkName(in.Name); err != nil {
		return err
	}
	allowed := TenantScopes()
	if tenant == events.Platform {
		allowed, in.Mode = OperatorScopes(), "op"
	} else if in.Mode != "" {
		if err := oneOf(in.Mode, "mode_invalid", "/mode", domain.ModeLive, domain.ModeTest); err != nil {
			return err
		}
	}
	if len(in.Scopes) == 0 {
		return refuse("scopes_invalid", "/scopes", "a key needs at least one scope of %v", allowed)
	}
	for i, s := range in.Scopes {
		if !slices.Contains(allowed, s) || slices.Contains(in.Scopes[:i], s) {
			return refuse("scopes_invalid", "/scopes", "scopes must be different ones of %v", allowed)
		}
	}
	return nil
}

func (c *Catalogue) newKey(tx KeyTx, tenant uuid.UUID, in CreateKey) (CreatedKey, error) {
	random := c.NewSecret()
	prefix := "mp_" + in.Mode + "_"
	secret := prefix + base64.RawURLEncoding.EncodeToString(random[:])
	k := CreatedKey{Secret: secret, APIKey: domain.APIKey{
		ID: c.NewID(), TenantID: tenant, Name: in.Name, Prefix: secret[:len(prefix)+shownPrefix], Mode: in.Mode,
		Scopes: in.Scopes, CreatedAt: c.now(), ExpiresAt: in.ExpiresAt,
	}}
	hash := HashSecret(secret)
	return k, tx.SaveKey(k.APIKey, hash[:])
}

// RotateKey makes a key with the properties of an old one, which ends after overlap.
func (c *Catalogue) RotateKey(ctx context.Context, req Request, tenant, keyID uuid.UUID, overlap time.Duration) (CreatedKey, error) {
	if overlap < 0 || overlap > MaxOverlap {
		return CreatedKey{}, refuse("overlap_invalid", "/overlapSeconds", "overlapSeconds must be 0 to %d", int(MaxOverlap.Seconds()))
	}
	return c.issue(ctx, req, tenant, func(tx KeyTx) (CreatedKey, error) {
		old, err := c.loadKey(tx, tenant, keyID)
		if err != nil {
			return CreatedKey{}, err
		}
		if err := refuseOffboarding(tx, tenant); err != nil {
			return CreatedKey{}, err
		}
		if !old.Usable(c.now()) {
			return CreatedKey{}, refuse("key_not_usable", "", "the key is revoked or expired; create a new one")
		}
		k, err := c.newKey(tx, tenant, CreateKey{Name: old.Name, Scopes: old.Scopes, Mode: old.Mode, ExpiresAt: old.ExpiresAt})
		if err != nil {
			return k, err
		}
		old.End(c.now(), overlap)
		if err := tx.SaveKey(*old, nil); err != nil {
			return k, err
		}
		_, err = c.record(tx, &req, tenant, events.APIKeyRotated, events.APIKeyRotation{New: k.Payload(), Old: old.Payload()})
		return k, err
	})
}

// revoke ends a key at once.
func (c *Catalogue) revoke(tx KeyTx, req *Request, k *domain.APIKey) error {
	k.End(c.now(), 0)
	if err := tx.SaveKey(*k, nil); err != nil {
		return err
	}
	_, err := c.record(tx, req, k.TenantID, events.APIKeyRevoked, k.Payload())
	return err
}

// RevokeKey ends a key now, on all instances within a second. A repetition changes
// nothing.
func (c *Catalogue) RevokeKey(ctx context.Context, req Request, tenant, keyID uuid.UUID) error {
	_, err := change(c.changeOfKey(ctx, tenant), req, func(tx KeyTx) (none struct{}, err error) {
		k, err := c.loadKey(tx, tenant, keyID)
		if err != nil || k.Ended {
			return none, err
		}
		return none, c.revoke(tx, &req, k)
	})
	return err
}

func (c *Catalogue) loadKey(tx KeyTx, tenant, keyID uuid.UUID) (*domain.APIKey, error) {
	k, err := tx.Key(keyID)
	if err == nil && (k == nil || k.TenantID != tenant) {
		err = refuse("key_not_found", "", "no such key")
	}
	return k, err
}
