package prometheus

import (
	"context"
	"errors"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
)

func TestMessagesWithUsageAreMeasured(t *testing.T) {
	registry := prom.NewRegistry()
	m := New(registry)
	if got := series(t, registry, "meterplex_consumer_lag"); got["17 usage.commands "] != 0 || got["31 usage.raw "] != 0 {
		t.Errorf("at the start the lag is %v", got)
	}
	m.UsageDecided(5, 2)
	m.UsageMessages(time.Second, nil)
	m.UsageMessages(time.Second, errors.New("the database does not answer"))
	ctx, stop := context.WithCancel(t.Context())
	if err := m.WatchUsageCommands(ctx, func(context.Context) (map[int16]int64, error) { stop(); return map[int16]int64{17: 4}, nil }); err != nil {
		t.Fatal(err)
	}
	if err := m.WatchUsageCommands(ctx, func(context.Context) (map[int16]int64, error) { return nil, errors.New("no broker") }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]map[string]float64{
		"events_consumed_total":   {"meterplex-usage-commands ok usage.commands ": 3, "meterplex-usage-commands noop usage.commands ": 2, "meterplex-usage-commands error usage.commands ": 1},
		"inbox_dedup_skips_total": {"meterplex-usage-commands ": 2},
		"consumer_lag":            {"17 usage.commands ": 4, "3 usage.commands ": 0},
	} {
		got := series(t, registry, "meterplex_"+name)
		for labels, n := range want {
			if v, there := got[labels]; !there || v != n {
				t.Errorf("%s: %v, want %s%v", name, got, labels, n)
			}
		}
	}
}
