package e2e

import (
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// inlinePoints are the kill points of a process that validates usage as it records it, and that hands
// events from one of its consumers to the next.
func inlinePoints() []string {
	const validator, aggregator = "meterplex-usage-validator, handed", "meterplex-usage-aggregator, handed"
	return []string{
		"inline: checkpoints locked", "inline: follow-ups placed", "inline: before COMMIT", "inline: after COMMIT", "inline: handed over, not answered",
		validator + ": before COMMIT", validator + ": between COMMIT and ack", aggregator + ": before COMMIT", aggregator + ": between COMMIT and ack",
	}
}

// P1, P2: a process with all roles dies at every kill point that only such a process has, under load.
func TestP2_KilledAtEveryKillPointOfOneProcess(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // a killed member of a Kafka group keeps its partitions for ten seconds
	m := w.killable("")
	w.catalogue(m.instance)
	tenants := w.createTenants(m.instance, 3)
	l := w.startLoad(tenants, 2, lightTraffic(), func(int) string { return m.url() })
	for _, place := range inlinePoints() {
		m.killAt(place, 2, nil)
		m.afterDeath = func() { // after the first death, leases end by time; no other process may hold any
			for _, table := range []string{`relay_cursors SET lease_until`, `relay_instances SET seen_at`} {
				if _, err := w.sql.Exec(t.Context(), `UPDATE `+table+` = '-infinity'`); err != nil {
					t.Error(err)
				}
			}
		}
	}
	l.awaitMore(50) // after the last death
	l.stop()
	w.settle(m.instance, tenants...)
	if t.Logf("%d deaths, %d requests without an answer", m.reached, l.lost()); m.reached != len(inlinePoints()) || l.lost() == 0 {
		t.Error("a kill point was not reached, or no request was under way at a death")
	}
	w.finish()
	w.verifyAtEnd()
}
