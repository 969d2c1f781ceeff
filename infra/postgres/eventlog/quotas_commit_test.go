package eventlog

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// Requests about reservations take effect once, too, each at a COMMIT whose answer or request is lost once or twice. So do those
// before which due reservations expire.
func TestP7_LostCommitAnswersEndReservationsOnce(t *testing.T) {
	database := migrated(t)
	for name, arm := range localtest.LostCommits {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			c, proxied := localtest.NewCutter(t, database)
			tenant, at := uuid.Must(uuid.NewV7()), time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
			m := newModelQuota(100)
			l, pool := openLogAt(t, proxied, func(c *Config) {
				c.Histories, c.Now = &grants{limits: map[uuid.UUID]int64{tenant: m.limit}}, func() time.Time { return at }
			})
			submit(t, l, tenant, asksOf(tenant, request{kind: domain.Use, usage: "warm", amount: 1}).batch...) // origins and statements are known
			m.submit(at, []request{{kind: domain.Use, usage: "warm", amount: 1}})
			hold := func(id string, amount int64, lasts time.Duration) []request {
				return []request{{kind: domain.Hold, reservation: id, amount: amount, lasts: lasts * time.Second}}
			}
			for i, step := range []struct {
				later time.Duration // seconds
				list  []request
			}{
				{0, append(hold("a", 20, 60), hold("b", 30, 60)...)}, {0, hold("c", 60, 60)}, {0, []request{{kind: domain.Extend, reservation: "a", lasts: time.Hour}}},
				{0, []request{{kind: domain.Commit, reservation: "a", usage: "part", amount: 15}}}, {0, []request{{kind: domain.Release, reservation: "b"}}},
				{0, append(hold("d", 10, 5), hold("e", 10, 5)...)}, {0, hold("f", 10, 60)},
				{6, []request{{kind: domain.Expire, reservation: "d"}, {kind: domain.Expire, reservation: "a"}, {kind: domain.Expire, reservation: "f"}}},
				{0, []request{{kind: domain.Use, usage: "room", amount: 70}}}, // ends e
				{60, hold("g", 100, 5)}, // ends f, and is denied
				{0, hold("h", 5, 5)}, {0, []request{{kind: domain.Commit, reservation: "h", usage: "over", amount: 50, overage: true}}},
			} {
				at = at.Add(step.later * time.Second)
				before := c.Reached.Load()
				arm(c).Store(int32(1 + i%2)) // the second look may be cut, too
				s := asksOf(tenant, step.list...)
				rows := countRows(t, pool, tenant)
				want, places := m.submit(at, step.list), submit(t, l, tenant, s.batch...)
				s.places = places
				if got := outcomesOf(s); strings.Join(got, ", ") != strings.Join(want, ", ") {
					t.Fatalf("step %d, %+v: %v instead of %v", i, step.list, got, want)
				}
				if stored := countRows(t, pool, tenant); (c.Reached.Load() == before) != (stored == rows) {
					t.Fatalf("step %d: %d COMMITs were cut, %d rows are stored", i, c.Reached.Load()-before, stored-rows)
				}
				arm(c).Store(0)
				for k := range places {
					if places[k].Status == commands.Appended {
						checkStored(t, l, &s.batch[k], &places[k])
					}
				}
				m.check(t, pool, tenant)
			}
			checkDense(t, pool)
		})
	}
}

// checkStored checks that the payload of a granted request is that of its stored event.
func checkStored(t *testing.T, l *Log, s *commands.Submitted, place *commands.Placement) {
	t.Helper()
	at := place.Position
	stored, err := l.Read(t.Context(), at.Partition, at.Number-1, at.Number, 1)
	if err != nil || len(stored) != 1 || string(stored[0].Payload) != string(s.Payload) {
		t.Fatalf("answered by %s, stored at %s is %v %v", s.Payload, at, stored, err)
	}
}

func countRows(t *testing.T, pool *pgxpool.Pool, tenant uuid.UUID) (n int) {
	t.Helper()
	must.OK(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1`, tenant).Scan(&n))
	return n
}
