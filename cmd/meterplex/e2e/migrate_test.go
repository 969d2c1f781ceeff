package e2e

import (
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// migrate prints its answer in the requested form.
func TestMigrateUsesTheRequestedOutputFormat(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newEmptyDeployment(t)
	for again := range 2 {
		if applied, err := migrate(t.Context(), w.db); err != nil || (applied == 0) != (again == 1) {
			t.Errorf("run %d applied %d: %v", again, applied, err)
		}
	}
}
