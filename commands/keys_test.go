package commands

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// keyTx fakes the port of keys.
type keyTx struct {
	unfaked
	*memory
	keys   map[uuid.UUID]domain.APIKey
	hashes map[uuid.UUID][]byte
}

func (tx *keyTx) Key(id uuid.UUID) (*domain.APIKey, error) {
	return found(tx.keys, id)
}

func (tx *keyTx) SaveKey(k domain.APIKey, hash []byte) error {
	if _, known := tx.keys[k.ID]; known == (hash != nil) {
		return errors.New("the hash is of new keys only")
	}
	if tx.keys[k.ID] = k; hash != nil {
		tx.hashes[k.ID] = hash
	}
	return nil
}

// goneScope is a scope of an earlier release, which new keys may not have.
const goneScope = "usage:gone"

// oldKey is a key of Alice, with such a scope.
var oldKey = domain.APIKey{ID: uuid.UUID{1}, TenantID: activeTenant, Name: "old", Prefix: "mp_test_abcdefgh", Mode: "test", Scopes: []string{ScopeUsageRead, goneScope},
	CreatedAt: noon.Add(-time.Hour), ExpiresAt: ptr(noon.Add(24 * time.Hour))}

func newKeys() (*Catalogue, *keyTx) {
	tx := &keyTx{memory: newMemory(), keys: map[uuid.UUID]domain.APIKey{oldKey.ID: oldKey}, hashes: map[uuid.UUID][]byte{}}
	transacted(tx.memory, &tx.keys)
	transacted(tx.memory, &tx.hashes)
	return catalogueOf(tx.memory, tx), tx
}

func TestBadKeysAreRefused(t *testing.T) {
	good := CreateKey{Name: "k", Scopes: []string{ScopeUsageWrite}}
	for name, c := range map[string]struct {
		tenant        uuid.UUID
		spoil         func(*CreateKey)
		code, pointer string
	}{
		"name":               {activeTenant, func(k *CreateKey) { k.Name = "" }, "name_invalid", "/name"},
		"mode":               {activeTenant, func(k *CreateKey) { k.Mode = "op" }, "mode_invalid", "/mode"},
		"no scope":           {activeTenant, func(k *CreateKey) { k.Scopes = nil }, "scopes_invalid", "/scopes"},
		"scope twice":        {activeTenant, func(k *CreateKey) { k.Scopes = []string{ScopeUsageRead, ScopeUsageRead} }, "scopes_invalid", "/scopes"},
		"scope of operators": {activeTenant, func(k *CreateKey) { k.Scopes = []string{ScopeAdmin} }, "scopes_invalid", "/scopes"},
		"unknown scope":      {activeTenant, func(k *CreateKey) { k.Scopes = []string{ScopeUsageRead, goneScope} }, "scopes_invalid", "/scopes"},
		"scope of tenants":   {events.Platform, func(*CreateKey) {}, "scopes_invalid", "/scopes"},
		"ends now":           {activeTenant, func(k *CreateKey) { k.ExpiresAt = ptr(clock()) }, "expires_at_invalid", "/expiresAt"},
		"unknown tenant":     {uuid.New(), func(*CreateKey) {}, "tenant_not_found", ""},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newKeys()
			in := good
			c.spoil(&in)
			_, err := catalogue.CreateKey(t.Context(), Request{By: operator}, c.tenant, in)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

func TestAKeyIsCreatedOnceForEachIdempotencyKey(t *testing.T) {
	for _, c := range []struct {
		tenant          uuid.UUID
		in              CreateKey
		mode, residency string
	}{
		{activeTenant, CreateKey{Name: "k", Scopes: []string{ScopeUsageWrite}}, "live", "eu-central-1"},
		{activeTenant, CreateKey{Name: "k", Scopes: []string{ScopeUsageWrite}, Mode: "test", ExpiresAt: ptr(noon.Add(time.Minute))}, "test", "eu-central-1"},
		{events.Platform, CreateKey{Name: "k", Scopes: []string{ScopeAudit}, Mode: "live"}, "op", ""},
	} {
		catalogue, tx := newKeys()
		var first CreatedKey
		answer, event := tx.once(t, caused{subject: events.APIKeyCreated, tenant: c.tenant, residency: c.residency}, func(req Request) (any, error) {
			k, err := catalogue.CreateKey(t.Context(), req, c.tenant, c.in)
			if first.Secret == "" {
				first = k
			} else if err == nil && (k.Secret != "" || !k.Repeated) {
				t.Errorf("the repetition is answered with the secret %q", k.Secret)
			}
			return k.APIKey, err
		})
		k, hash := answer.(domain.APIKey), HashSecret(first.Secret)
		if first.Repeated || !strings.HasPrefix(first.Secret, k.Prefix) || len(k.Prefix) != len("mp_op_")+len(c.mode)-2+shownPrefix || len(first.Secret) < 43 {
			t.Errorf("the first answer is %+v", first)
		}
		want := domain.APIKey{ID: k.ID, TenantID: c.tenant, Name: "k", Prefix: k.Prefix, Mode: c.mode, Scopes: c.in.Scopes, CreatedAt: stored, ExpiresAt: c.in.ExpiresAt}
		if !reflect.DeepEqual(k, want) || !reflect.DeepEqual(tx.keys[k.ID], want) || !bytes.Equal(tx.hashes[k.ID], hash[:]) {
			t.Errorf("%+v, saved %+v", k, tx.keys[k.ID])
		}
		if got := payload[events.APIKey](t, &event); !reflect.DeepEqual(got, want.Payload()) || tx.held[0] != c.tenant {
			t.Errorf("recorded %+v under the head of %s", got, tx.held[0])
		}
		for _, a := range tx.answers {
			if bytes.Contains(a.Body, []byte(first.Secret)) || bytes.Contains(event.Payload, []byte(first.Secret)) {
				t.Error("the secret is stored")
			}
		}
	}
}

// A repetition after the end of the key returns the first answer, no refusal.
func TestALateRepetitionOfANewKeyIsAnswered(t *testing.T) {
	catalogue, tx := newKeys()
	in := CreateKey{Name: "k", Scopes: []string{ScopeUsageWrite}, ExpiresAt: ptr(noon.Add(time.Minute))}
	first, err := catalogue.CreateKey(t.Context(), keyed(1), activeTenant, in)
	tx.succeeded(t, err, 1)
	catalogue.Now = func() time.Time { return noon.Add(time.Hour) }
	again, err := catalogue.CreateKey(t.Context(), keyed(1), activeTenant, in)
	if tx.succeeded(t, err, 1); again.ID != first.ID {
		t.Errorf("%s instead of %s", again.ID, first.ID)
	}
}

func TestKeysThatCannotBeRotated(t *testing.T) {
	for name, c := range map[string]struct {
		tenant, key   uuid.UUID
		overlap       time.Duration
		revoked       *time.Time
		code, pointer string
	}{
		"negative overlap":    {activeTenant, oldKey.ID, -1, nil, "overlap_invalid", "/overlapSeconds"},
		"long overlap":        {activeTenant, oldKey.ID, MaxOverlap + 1, nil, "overlap_invalid", "/overlapSeconds"},
		"unknown":             {activeTenant, uuid.New(), 0, nil, "key_not_found", ""},
		"of another tenant":   {suspendedTenant, oldKey.ID, 0, nil, "key_not_found", ""},
		"revoked":             {activeTenant, oldKey.ID, 0, ptr(noon), "key_not_usable", ""},
		"revoked for a while": {activeTenant, oldKey.ID, 0, ptr(noon.Add(-time.Hour)), "key_not_usable", ""},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newKeys()
			k := oldKey
			k.RevokedAt = c.revoked
			tx.keys[k.ID] = k
			_, err := catalogue.RotateKey(t.Context(), Request{By: operator}, c.tenant, c.key, c.overlap)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

func TestARotatedKeyEndsAfterTheOverlap(t *testing.T) {
	for _, c := range []struct {
		overlap       time.Duration
		revoked, want time.Time
	}{
		{0, time.Time{}, stored},
		{MaxOverlap, time.Time{}, stored.Add(MaxOverlap)},
		{time.Hour, noon.Add(time.Minute), noon.Add(time.Minute)}, // it ends earlier already
		{time.Hour, noon.Add(2 * time.Hour), stored.Add(time.Hour)},
	} {
		catalogue, tx := newKeys()
		k := oldKey
		if !c.revoked.IsZero() {
			k.RevokedAt = &c.revoked
		}
		tx.keys[k.ID] = k
		answer, event := tx.once(t, caused{subject: events.APIKeyRotated, tenant: activeTenant, residency: "eu-central-1"}, func(req Request) (any, error) {
			made, err := catalogue.RotateKey(t.Context(), req, activeTenant, k.ID, c.overlap)
			return made.APIKey, err
		})
		made := answer.(domain.APIKey)
		if made.ID == k.ID || made.Name != k.Name || made.Mode != k.Mode || !slices.Equal(made.Scopes, k.Scopes) || !made.ExpiresAt.Equal(*k.ExpiresAt) || made.RevokedAt != nil {
			t.Errorf("%+v replaces %+v", made, k)
		}
		if old := tx.keys[k.ID]; old.RevokedAt == nil || !old.RevokedAt.Equal(c.want) || len(tx.hashes) != 1 {
			t.Errorf("the old key ends at %v instead of %v", old.RevokedAt, c.want)
		}
		got := payload[events.APIKeyRotation](t, &event)
		if got.New.ID != made.ID || got.Old.ID != k.ID || !got.Old.RevokedAt.Equal(c.want) {
			t.Errorf("recorded %+v", got)
		}
	}
}

func TestAKeyIsRevokedOnce(t *testing.T) {
	catalogue, tx := newKeys()
	k := oldKey
	k.RevokedAt = ptr(noon.Add(time.Hour)) // rotated
	tx.keys[k.ID] = k
	_, event := tx.once(t, caused{subject: events.APIKeyRevoked, tenant: activeTenant, residency: "eu-central-1"}, func(req Request) (any, error) {
		return nil, catalogue.RevokeKey(t.Context(), req, activeTenant, k.ID)
	})
	if got := payload[events.APIKey](t, &event); got.ID != k.ID || !got.RevokedAt.Equal(stored) || !tx.keys[k.ID].RevokedAt.Equal(stored) {
		t.Errorf("recorded %+v, saved %+v", got, tx.keys[k.ID])
	}
	tx.succeeded(t, catalogue.RevokeKey(t.Context(), Request{By: operator}, activeTenant, k.ID), 1)
	for _, c := range []struct{ tenant, key uuid.UUID }{{suspendedTenant, k.ID}, {activeTenant, uuid.New()}} {
		refusedWith(t, catalogue.RevokeKey(t.Context(), Request{By: operator}, c.tenant, c.key), "key_not_found", "")
	}
	tx.succeeded(t, nil, 1)
}
