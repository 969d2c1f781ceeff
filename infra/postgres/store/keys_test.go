package store

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
)

// TestP9_AWrongKeyCostsWhatAnUnknownOneDoes counts statements instead of time: a client
// that guesses keys cannot learn from the work done for a request. Only a key that was
// valid once costs a second statement, for its tenant; its sender knows the whole secret.
func TestP9_AWrongKeyCostsWhatAnUnknownOneDoes(t *testing.T) {
	s, _, pool, _ := openStore(t)
	changes := &catalogue.Commands{Store: s, Now: time.Now, NewID: newID,
		NewSecret: func() [32]byte { return sha256.Sum256([]byte(t.Name())) }}
	tenant, err := changes.CreateTenant(t.Context(), commands.Request{By: commands.Caller{}},
		catalogue.CreateTenant{Name: "T", Class: "small"})
	must.OK(t, err)
	made, err := changes.CreateKey(t.Context(), commands.Request{By: commands.Caller{}}, tenant.ID,
		catalogue.CreateKey{Name: "k", Scopes: []string{commands.ScopeUsageRead}})
	must.OK(t, err)
	traced, sent := localtest.Traced(t, pool)
	keys := newKeys(traced, time.Now, func(time.Duration) *projections.CatalogueMarks { return nil }, make(limited, maxLoads))
	find := func(secret string) []string {
		t.Helper()
		if _, _, _, err := keys.Find(t.Context(), catalogue.HashSecret(secret)); err != nil {
			t.Fatal(err)
		}
		return sent.Take()
	}
	_ = find("mp_live_warm-up")
	unknown := find("mp_live_" + strings.Repeat("x", 43))
	if len(unknown) != 1 {
		t.Fatalf("an unknown key costs %q", unknown)
	}
	last := made.Secret[len(made.Secret)-1:]
	for name, secret := range map[string]string{
		"right prefix": made.Prefix + strings.Repeat("x", len(made.Secret)-len(made.Prefix)),
		"last letter":  made.Secret[:len(made.Secret)-1] + map[bool]string{true: "B", false: "A"}[last == "A"],
		"first letter": "mp_live_!" + made.Secret[9:],
		"other mode":   "mp_test_" + made.Secret[8:],
		"longer":       made.Secret + "x",
		"operator's":   "mp_op_" + strings.Repeat("x", 43),
	} {
		if got := find(secret); !slices.Equal(got, unknown) {
			t.Errorf("%s costs %q, an unknown key %q", name, got, unknown)
		}
	}
	if got := find(made.Secret); len(got) != 2 || got[0] != unknown[0] {
		t.Errorf("the key itself costs %q", got)
	}
}

// A key that is revoked, or rotated without an overlap, is refused at once by an instance whose clock is an hour behind that of the
// instance that ended it. It cannot be rotated there either, and a repeated revocation records no event.
func TestP9_AKeyThatEndsAtOnceIsRefusedWhateverTheClocks(t *testing.T) {
	s, _, pool, _ := openStore(t)
	behind, ahead := catalogueOf(s), catalogueOf(s)
	ahead.Now = func() time.Time { return time.Now().Add(time.Hour) }
	tenant, err := ahead.CreateTenant(t.Context(), commands.Request{}, catalogue.CreateTenant{Name: "T", Class: "small"})
	must.OK(t, err)
	for name, x := range map[string]struct {
		end    func(key uuid.UUID) error
		usable bool
	}{
		"revoked": {func(key uuid.UUID) error { return ahead.RevokeKey(t.Context(), commands.Request{}, tenant.ID, key) }, false},
		"rotated without an overlap": {func(key uuid.UUID) error {
			_, err := ahead.RotateKey(t.Context(), commands.Request{}, tenant.ID, key, 0)
			return err
		}, false},
		"rotated with an overlap": {func(key uuid.UUID) error {
			_, err := ahead.RotateKey(t.Context(), commands.Request{}, tenant.ID, key, time.Minute)
			return err
		}, true},
		"revoked during an overlap": {func(key uuid.UUID) error {
			if _, err := behind.RotateKey(t.Context(), commands.Request{}, tenant.ID, key, time.Minute); err != nil {
				return err
			}
			return ahead.RevokeKey(t.Context(), commands.Request{}, tenant.ID, key) // whose clock is past the end of the overlap
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := behind.CreateKey(t.Context(), commands.Request{}, tenant.ID,
				catalogue.CreateKey{Name: "k", Scopes: []string{commands.ScopeUsageRead}})
			if err == nil {
				err = x.end(made.ID)
			}
			must.OK(t, err)
			k, _, _, err := New(pool, nil, Config{}).Keys.Find(t.Context(), catalogue.HashSecret(made.Secret))
			if err != nil || k.Usable(time.Now()) != x.usable || k.RevokedAt == nil {
				t.Errorf("usable: %t, want %t; revoked at %v: %v", k.Usable(time.Now()), x.usable, k.RevokedAt, err)
			}
			if x.usable {
				return
			}
			if rotated, err := behind.RotateKey(t.Context(), commands.Request{}, tenant.ID, made.ID, 0); err == nil {
				t.Errorf("the ended key was rotated: %+v", rotated.APIKey)
			}
			before := count(t, pool, `SELECT count(*) FROM event_log_rows`)
			if err := behind.RevokeKey(t.Context(), commands.Request{}, tenant.ID, made.ID); err != nil ||
				count(t, pool, `SELECT count(*) FROM event_log_rows`) != before {
				t.Errorf("a repeated revocation is recorded again: %v", err)
			}
		})
	}
}
