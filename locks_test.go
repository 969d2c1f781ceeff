package meterplex

import (
	"slices"
	"strings"
	"testing"
)

// TestLocksAreTakenInOrder: a statement that locks rows must have an ORDER BY, or two of
// them can deadlock. A statement that selects one row by its whole key needs no order.
func TestLocksAreTakenInOrder(t *testing.T) {
	oneRow := []string{
		"WHERE projection = $1 AND flip = 1",
		"WHERE consumer_group = $1",
		"FROM sagas WHERE id = $1",
		"FROM pushes WHERE id = $1",
		"FROM webhooks w WHERE w.id = $1",
		"FROM webhook_deliveries d WHERE d.id = $1",
	}
	locks := 0
	eachText(t, func(path, text string) {
		parts := strings.Split(text, "FOR UPDATE")
		for i, before := range parts[:len(parts)-1] {
			if after, _, _ := strings.Cut(parts[i+1], "\n"); strings.Contains(after, "SKIP LOCKED") {
				continue // SKIP LOCKED never waits
			}
			locks++
			statement := before[max(0, strings.LastIndex(before, "SELECT")):]
			if !strings.Contains(statement, "ORDER BY") && !slices.ContainsFunc(oneRow, func(key string) bool {
				return strings.Contains(statement, key)
			}) {
				t.Errorf("%s locks rows in no order: %s", path, strings.Join(strings.Fields(statement), " "))
			}
		}
	})
	if locks < 12 {
		t.Errorf("%d locks were looked at", locks)
	}
}
