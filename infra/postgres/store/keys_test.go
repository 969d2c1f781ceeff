package store

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/projections"
)

// TestP9_AWrongKeyCostsWhatAnUnknownOneDoes counts statements instead of time: a client
// that guesses keys cannot learn from the work done for a request. Only a key that was
// valid once costs a second statement, for its tenant; its sender knows the whole secret.
func TestP9_AWrongKeyCostsWhatAnUnknownOneDoes(t *testing.T) {
	s, _, pool, _ := openStore(t)
	catalogue := &commands.Catalogue{Store: s, Now: time.Now, NewID: func() uuid.UUID { return uuid.Must(uuid.NewV7()) },
		NewSecret: func() [32]byte { return sha256.Sum256([]byte(t.Name())) }}
	tenant, err := catalogue.CreateTenant(t.Context(), commands.Request{By: commands.Caller{}}, commands.CreateTenant{Name: "T", Class: "small"})
	if err != nil {
		t.Fatal(err)
	}
	made, err := catalogue.CreateKey(t.Context(), commands.Request{By: commands.Caller{}}, tenant.ID, commands.CreateKey{Name: "k", Scopes: []string{commands.ScopeUsageRead}})
	if err != nil {
		t.Fatal(err)
	}
	traced, sent := localtest.Traced(t, pool)
	keys := newKeys(traced, time.Now, func(time.Duration) *projections.CatalogueMarks { return nil }, make(seats, maxLoads))
	find := func(secret string) []string {
		t.Helper()
		if _, _, err := keys.Find(t.Context(), commands.HashSecret(secret)); err != nil {
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
