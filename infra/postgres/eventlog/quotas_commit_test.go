package eventlog

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Asks are granted and counted once, whatever becomes of a COMMIT and its answer, and the answer is that of the stored event.
func TestP7_LostCommitAnswersCountGrantsOnce(t *testing.T) {
	database := localtest.Database(t)
	if _, err := postgres.Migrate(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	for name, arm := range map[string]func(*localtest.Cutter) *atomic.Int32{
		"answer lost":  func(c *localtest.Cutter) *atomic.Int32 { return &c.Answer },
		"request lost": func(c *localtest.Cutter) *atomic.Int32 { return &c.Request },
	} {
		t.Run(name, func(t *testing.T) {
			c, proxied := localtest.NewCutter(t, database)
			tenant := uuid.Must(uuid.NewV7())
			g := &grants{limits: map[uuid.UUID]int64{tenant: 21}}
			l, pool := openLogAt(t, proxied, func(c *Config) { c.Histories = g })
			submit(t, l, tenant, requestFor(tenant, "warm", 1)) // origins and statements are known
			for round := range 5 {
				before := c.Reached.Load()
				arm(c).Store(int32(1 + round%2)) // the second look may be cut, too
				batch := []commands.Submitted{requestFor(tenant, fmt.Sprint("a", round), 3), requestFor(tenant, fmt.Sprint("b", round), 30), requestFor(tenant, fmt.Sprint("c", round), 1)}
				places := submit(t, l, tenant, batch...)
				for i, want := range []string{fmt.Sprint("granted at ", 4*round+4), "denied", fmt.Sprint("granted at ", 4*round+5)} {
					if got := outcomeOf(&batch[i], &places[i]); got != want {
						t.Fatalf("round %d: ask %d is %s instead of %s", round, i, got, want)
					}
				}
				if c.Reached.Load() == before {
					t.Fatalf("round %d: no COMMIT was cut", round)
				}
				stored, err := l.Read(t.Context(), places[2].Position.Partition, places[2].Position.Number-1, places[2].Position.Number, 1)
				if err != nil || len(stored) != 1 || string(stored[0].Payload) != string(batch[2].Payload) {
					t.Fatalf("round %d: answered by %s, stored is %v %v", round, batch[2].Payload, stored, err)
				}
				again := submit(t, l, tenant, requestFor(tenant, fmt.Sprint("a", round), 3))
				if again[0].Status != commands.Duplicate || again[0].Position != places[0].Position {
					t.Fatalf("round %d: asked again: %v, first %v", round, again, places)
				}
			}
			if used := usedOf(t, pool, tenant); used != "21" {
				t.Errorf("%s are used", used)
			}
			checkDense(t, pool)
		})
	}
}
