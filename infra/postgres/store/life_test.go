package store

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/internal/must"
)

// A server that was promoted or set back differs from the head's life. The tests write another
// life into the head, as the data of a former server has it.
var otherLives = map[string]struct{ head, reason string }{
	"restarted, or volume set back": {`started_at = started_at - interval '1 hour'`, eventlog.ReasonRestarted},
	"standby promoted":              {`timeline = timeline - 1, started_at = started_at - interval '1 hour'`, eventlog.ReasonPromoted},
	"promoted without a restart":    {`timeline = timeline - 1`, eventlog.ReasonPromoted},
	"dump restored elsewhere": {`system_identifier = system_identifier - 1, started_at = started_at - interval '1 hour'`,
		eventlog.ReasonRestored},
	"migrated by this release": {`system_identifier = NULL, timeline = NULL, started_at = NULL`, eventlog.ReasonFirst},
}

func TestP2_EveryAppendInAnotherLifeOfTheServerRaisesTheEpochFirst(t *testing.T) {
	s, l, pool, url := openStore(t)
	owner := asOwner(t, url)
	appends := map[string]func(l *eventlog.Log, pool *pgxpool.Pool, tenant uuid.UUID) error{
		"ingest": func(l *eventlog.Log, _ *pgxpool.Pool, tenant uuid.UUID) error {
			_, err := l.Submit(t.Context(), tenant, []metering.Submitted{usageEvent(tenant, "new", 1)})
			return err
		},
		"change": func(l *eventlog.Log, _ *pgxpool.Pool, tenant uuid.UUID) error {
			return s.Change(t.Context(), tenant, func(tx commands.Tx) error {
				_, err := tx.Append(usageEvent(tenant, "new", 1).Pending)
				return err
			})
		},
		"consumer": func(l *eventlog.Log, pool *pgxpool.Pool, tenant uuid.UUID) (err error) {
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				err = pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
					_, err := l.AppendTx(t.Context(), tx, []events.Pending{usageEvent(tenant, "new", 1).Pending})
					return err
				})
				if err == nil {
					return nil // a consumer tries again until the epoch is raised
				}
			}
			return err
		},
	}
	for life, other := range otherLives {
		for by, appendOne := range appends {
			t.Run(life+"/"+by, func(t *testing.T) {
				testRaisedFirst(t, l, pool, owner, other.head, other.reason, func(tenant uuid.UUID) error {
					return appendOne(l, pool, tenant)
				})
			})
		}
	}
}

func testRaisedFirst(t *testing.T, l *eventlog.Log, pool *pgxpool.Pool, owner *sql.DB, head, reason string,
	appendOne func(uuid.UUID) error) {
	tenant := uuid.Must(uuid.NewV7())
	p := events.PartitionOf(tenant)
	old := submit(t, l, tenant, usageEvent(tenant, "old", 1))[0].Position
	if _, err := owner.Exec(`UPDATE relay_cursors SET owner = 'relay', position = $2, lease_until = now() + interval '1 hour'
		WHERE partition = $1`, p, old.Number); err != nil {
		t.Fatal(err)
	}
	var lease int64
	if err := owner.QueryRow(`UPDATE log_heads h SET `+head+
		` FROM relay_cursors c WHERE c.partition = h.partition AND h.partition = $1 RETURNING c.fence`, p).Scan(&lease); err != nil {
		t.Fatal(err)
	}
	must.OK(t, appendOne(tenant))
	got, err := l.Read(t.Context(), p, old.Number-1, old.Number+9, 10)
	if err != nil || len(got) != 2 {
		t.Fatalf("%d events, want 2: %v", len(got), err)
	}
	if got[1].Epoch <= got[0].Epoch {
		t.Fatalf("the epochs %d and %d do not rise", got[0].Epoch, got[1].Epoch)
	}
	var from, fence int64
	var why string
	var free bool
	err = pool.QueryRow(t.Context(), `SELECT e.from_position, e.reason, c.fence, c.owner IS NULL FROM log_epochs e JOIN relay_cursors c
		USING (partition)
 WHERE e.partition = $1 ORDER BY e.epoch DESC LIMIT 1`, p).Scan(&from, &why, &fence, &free)
	if err != nil || from != old.Number+1 || why != reason || fence <= lease || !free {
		t.Errorf("the epoch begins at %d for %q, and the lease has fence %d after %d, free %t: %v", from, why, fence, lease, free, err)
	}
}
