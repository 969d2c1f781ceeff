package store

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/internal/must"
)

// TestInstancesAreListedWithTheirStates: one that runs, one that was killed, one that was stopped; and one of two days ago is deleted.
func TestInstancesAreListedWithTheirStates(t *testing.T) {
	_, _, pool, _ := openStore(t)
	run(t, pool, `INSERT INTO instances (id, version, roles, started_at, seen_at) VALUES
 ('killed', 'v1', '{api}', now() - interval '1 hour', now() - interval '1 minute'), ('old', 'v0', '{}', now() - interval '3 days',
 now() - interval '2 days')`)
	reader := &Catalogue{Pool: pool}
	states := func() (all []string) {
		t.Helper()
		list, err := reader.Instances(t.Context(), commands.Page{Limit: 10})
		must.OK(t, err)
		for _, i := range list {
			all = append(all, i.ID+" "+i.State+" "+i.Version)
		}
		return all
	}
	if got := states(); !slices.Equal(got, []string{"killed LOST v1"}) {
		t.Fatalf("before the start: %q", got)
	}
	i := &Instances{Pool: pool, ID: "running", Version: "v2", Roles: []string{"api", "relay"}, Logger: slog.New(slog.DiscardHandler),
		Every: 10 * time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	for !slices.Equal(states(), []string{"killed LOST v1", "running RUNNING v2"}) {
		time.Sleep(5 * time.Millisecond)
	}
	for count(t, pool, `SELECT count(*) FROM instances WHERE id = 'old'`) != 0 {
		time.Sleep(5 * time.Millisecond)
	}
	for count(t, pool, `SELECT count(*) FROM instances WHERE id = 'running' AND seen_at > started_at AND roles = '{api,relay}'`) != 1 {
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	must.OK(t, <-ended)
	if got := states(); !slices.Equal(got, []string{"killed LOST v1", "running ENDED v2"}) {
		t.Errorf("after the end: %q", got)
	}
	list, err := reader.Instances(t.Context(), commands.Page{Limit: 1, After: "killed"})
	if err != nil || len(list) != 1 || list[0].ID != "running" || list[0].EndedAt == nil ||
		!slices.Equal(list[0].Roles, []string{"api", "relay"}) {
		t.Errorf("the second page is %+v, %v", list, err)
	}
}
