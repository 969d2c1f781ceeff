package origins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

func open(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func openOrigins(t *testing.T, pool *pgxpool.Pool) *Origins {
	o := New(pool, events.Producer{Service: "meterplex", Instance: "test", Commit: "x"}, events.ResidencyUnspecified, slog.Default())
	t.Cleanup(o.Close)
	return o
}

// The new origins of a tenant that arrive before its turn are added together.
func TestNewOriginsOfATenantAreAddedTogether(t *testing.T) {
	traced, sent := localtest.Traced(t, open(t, localtest.Migrated(t, postgres.Migrate)))
	o := openOrigins(t, traced)
	tenant := uuid.Must(uuid.NewV7())
	number := func(actor string) error {
		_, err := o.NumbersInTurn(context.Background(), tenant, 1, func(int) *events.Pending {
			return &events.Pending{TenantID: tenant, Actor: events.Actor{Type: "api_key", ID: actor},
				Residency: events.ResidencyUnspecified}
		})
		return err
	}
	must.OK(t, number("known"))
	before := sent.Count("INSERT INTO log_origins")
	for range MaxNumbering { // of others
		o.numbering.turns <- struct{}{}
	}
	const keys = 50
	var all sync.WaitGroup
	for n := range keys {
		all.Go(func() {
			actor := fmt.Sprint("key ", n)
			for { // a submission gives up if its turn does not come in time
				err := number(actor)
				if err == nil {
					return
				}
				if !errors.Is(err, commands.ErrUnavailable) {
					t.Error(err)
					return
				}
			}
		})
	}
	waiting := func() int {
		o.numbering.mu.Lock()
		defer o.numbering.mu.Unlock()
		return len(o.numbering.waiting[tenant])
	}
	must.Until(t, "all wait", func() bool { return waiting() >= keys })
	for range MaxNumbering {
		<-o.numbering.turns
	}
	all.Wait()
	if n := sent.Count("INSERT INTO log_origins") - before; n > 3 {
		t.Errorf("%d statements added %d origins", n, keys)
	}
	must.Until(t, "the worker has ended", func() bool {
		o.numbering.mu.Lock()
		defer o.numbering.mu.Unlock()
		return len(o.numbering.waiting) == 0
	})
}

// However many sessions add an origin at the same time, it has one number.
func TestSessionsThatAddTheSameOriginsAgree(t *testing.T) {
	url := localtest.Migrated(t, postgres.Migrate)
	const processes, keys = 4, 30
	var opened []*Origins
	for range processes {
		opened = append(opened, openOrigins(t, open(t, url)))
	}
	var list []Origin
	for n := range keys {
		list = append(list, Origin{events.Actor{Type: "api_key", ID: fmt.Sprint("key ", n)}, opened[0].producer, events.CurrentVocabulary(),
			events.ResidencyUnspecified})
	}
	var all sync.WaitGroup
	numbers := make([]map[Origin]int32, processes)
	for i, o := range opened {
		all.Go(func() {
			var err error
			if numbers[i], err = o.number(context.Background(), list); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	taken := map[int32]bool{}
	for _, v := range list {
		taken[numbers[0][v]] = true
		for i := range numbers {
			if numbers[i][v] != numbers[0][v] || numbers[i][v] == 0 {
				t.Errorf("%s has the numbers %d and %d", v.Actor.ID, numbers[0][v], numbers[i][v])
			}
		}
	}
	if len(taken) != keys {
		t.Errorf("%d origins have %d numbers", keys, len(taken))
	}
}

// A full cache evicts one origin for a new one. The numbers of the others stay.
func TestAFullCacheOfOriginsEvictsSingleOnes(t *testing.T) {
	o := New(nil, events.Producer{}, "", nil)
	originOf := func(n int) Origin { return Origin{Actor: events.Actor{Type: "api_key", ID: fmt.Sprint(n)}} }
	const more = 100
	for n := range maxOrigins + more {
		o.store(int32(n+1), originOf(n), 0)
		o.store(int32(n+1), originOf(n), 0) // a known one evicts no other
	}
	if len(o.ids) != maxOrigins || len(o.byID) != maxOrigins {
		t.Errorf("%d origins and %d numbers are cached, want %d", len(o.ids), len(o.byID), maxOrigins)
	}
	for v, id := range o.ids {
		if o.byID[id] != v || v != originOf(int(id)-1) {
			t.Fatalf("number %d is of %v and of %v", id, o.byID[id], v)
		}
	}
}

// TestAnEpochIsNotedAfterItsCacheStarts: a goroutine that finds an epoch noted uses no numbers of the epoch before.
func TestAnEpochIsNotedAfterItsCacheStarts(t *testing.T) {
	o := New(nil, events.Producer{}, "", nil)
	of := Origin{Residency: "eu"}
	o.InEpoch(3, 1)
	o.store(7, of, o.Era())
	o.mu.RLock() // the cache cannot start again now
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.InEpoch(3, 2)
	}()
	noted := func() bool { return o.epochs[3].Load() == 2 }
	for began := time.Now(); !noted() && time.Since(began) < 100*time.Millisecond; {
		time.Sleep(time.Millisecond)
	}
	if noted() {
		t.Error("epoch 2 is noted while the cache holds numbers of epoch 1")
	}
	o.mu.RUnlock()
	<-done
	if _, ok := o.cached(of); ok || !noted() {
		t.Errorf("in epoch 2 (%t) the cache holds a number of epoch 1: %t", noted(), ok)
	}
}
