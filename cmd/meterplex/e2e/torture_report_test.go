package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local"
)

// report prints what was done. The logs of a failed run are kept.
func (x *torture) report(t testing.TB) {
	if x.work == nil {
		return
	}
	t.Logf("%d faults in %s, %d rounds; acked %d, duplicates %d, conflicts %d, rejected %d, %d requests without an answer, "+
		"%d events unknown at the end (all settled), lost %d, doubled %d; %s",
		x.reached, time.Since(x.begun).Round(time.Second), x.now.number, x.total("accepted"), x.total("duplicate"), x.total("conflict"), x.total("rejected"),
		x.unanswered, x.unknown, x.lost, x.doubled, x.work)
	if t.Failed() {
		t.Logf("METERPLEX_TEST_SEED=%d repeats it; its logs are in %s", x.seed, x.keepLogs())
	}
}

// keepLogs copies the logs of instances and servers to a folder that is not removed.
func (x *torture) keepLogs() string {
	dir, err := os.MkdirTemp("", "meterplex-torture-")
	if err != nil {
		return err.Error()
	}
	for _, m := range x.members {
		_ = os.WriteFile(filepath.Join(dir, strings.ReplaceAll(m.name, " ", "-")+".log"), []byte(m.lastLines(1<<30)), 0o644)
	}
	logs := map[string]string{}
	for name, server := range map[string]*local.Postgres{"postgres": x.servers.primary, "postgres-standby": x.servers.standby, "postgres-former": x.servers.former} {
		if server != nil {
			logs[name+".log"] = filepath.Join(server.Dir(), "postgres.log")
		}
	}
	for _, k := range x.brokers() {
		home := filepath.Dir(k.Dir())
		logs[filepath.Base(home)+".log"] = filepath.Join(home, "kafka.log")
	}
	for name, path := range logs {
		if raw, err := os.ReadFile(path); err == nil {
			_ = os.WriteFile(filepath.Join(dir, name), raw, 0o644)
		}
	}
	return dir
}

func (k *backgroundWork) String() string {
	parts := []string{}
	for _, p := range k.counts() {
		parts = append(parts, fmt.Sprintf("%s %d", p.name, p.n))
	}
	return strings.Join(parts, ", ")
}

type counted struct {
	name string
	n    int64
}

func (k *backgroundWork) counts() []counted {
	return []counted{
		{"reads of figures between their bounds", k.between.Load()}, {"entitlement checks between their bounds", k.checks.Load()},
		{"reads of figures as known before", k.asOf.Load()}, {"explanations that add up", k.explained.Load()},
		{"rebuilds begun", k.rebuilds.Load()}, {"of them for one tenant", k.scoped.Load()}, {"promoted", k.promoted.Load()},
		{"rolled back", k.rolledBack.Load()}, {"abandoned", k.abandoned.Load()},
		{"dead letters retried", k.retried.Load()}, {"bulk retries", k.bulks.Load()}, {"subscriptions renewed", k.renewed.Load()},
		{"changes of the catalogue", k.changed.Load()}, {"rewinds and replays", k.replays.Load()},
		{"messages with usage", k.messages.Load()}, {"invalid messages", k.poison.Load()},
		{"grants and ends of holds", int64(k.limits.fold.grants)}, {"samples of accounts equal to the log", int64(k.limits.fold.samples)},
		{"corrections and retractions", k.corrections.applied.Load()},
		{"snapshots of closed periods", k.periods.closed.Load()}, {"periods reopened", k.periods.reopened.Load()}, {"adjustments decided", k.periods.decisions.Load()},
		{"answers of the provider that failed", k.endings.drawn.Load()}, {"requests of a tenant that ends refused", k.endings.refused.Load()},
	}
}
