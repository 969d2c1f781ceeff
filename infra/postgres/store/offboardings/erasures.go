package offboardings

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/offboarding"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
)

var (
	_ offboarding.ErasureStore  = (*Erasures)(nil)
	_ offboarding.ErasureTx     = erasureTx{}
	_ offboarding.ErasureReader = Reader{}
)

const (
	// erasureRows bounds the events or answers that a batch changes, and erasureSpan the positions that it looks at: most may be of other
	// tenants.
	erasureRows = 1000
	erasureSpan = 50_000
)

// Erasures erases personal data. It implements offboarding.ErasureStore.
type Erasures struct {
	Store  *store.Store
	Models []projections.PersonalData // the read models with personal data
	Rows   int                        // events in a batch; 0: 1,000
}

// Reader reads erasures.
type Reader struct{ *store.Catalogue }

// erasureTx is a step of an erasure.
type erasureTx struct{ *store.Tx }

// ChangeErasure implements offboarding.ErasureStore.
func (s *Erasures) ChangeErasure(ctx context.Context, tenant uuid.UUID, decide func(offboarding.ErasureTx) error) error {
	return s.Store.ChangeTenant(ctx, tenant, func(tx *store.Tx) error { return decide(erasureTx{tx}) }, tenant)
}

const (
	erasureColumns     = `id, tenant_id, saga_id, state, reason, actor, requested_at, up_to, cursor, place, rewritten, ended_at`
	erasureOfTenantSQL = `SELECT ` + erasureColumns + ` FROM erasures WHERE tenant_id = $1`
	erasuresSQL        = `SELECT ` + erasureColumns + ` FROM erasures WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2`
	lockErasureSQL     = `SELECT ` + erasureColumns + ` FROM erasures WHERE id = $1 AND state = '` + domain.ErasureRunning +
		`' ORDER BY id FOR UPDATE`
	saveErasureSQL = `INSERT INTO erasures (` + erasureColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
 ON CONFLICT (id) DO UPDATE SET state = excluded.state, cursor = excluded.cursor, place = excluded.place, rewritten = excluded.rewritten,
 ended_at = excluded.ended_at`
)

func erasureArgs(e *domain.Erasure) []any {
	return []any{e.ID, e.TenantID, e.SagaID, e.State, e.Reason, e.Actor, e.RequestedAt, e.UpTo, e.Cursor, e.Place, e.Rewritten, e.EndedAt}
}

// Erasure implements offboarding.ErasureReader.
func (r Reader) Erasure(ctx context.Context, tenant uuid.UUID) (*domain.Erasure, error) {
	return store.Get(ctx, r.Catalogue, pgx.RowToStructByName[domain.Erasure], erasureOfTenantSQL, tenant)
}

// Erasures implements offboarding.ErasureReader.
func (r Reader) Erasures(ctx context.Context, p commands.Page) ([]domain.Erasure, error) {
	return store.List(ctx, r.Catalogue, pgx.RowToStructByName[domain.Erasure], erasuresSQL, store.AfterID(p), p.Limit)
}

// Erasure implements offboarding.ErasureTx.
func (t erasureTx) Erasure(tenant uuid.UUID) (*domain.Erasure, error) {
	return store.Find(t.Context(), t.DB(), pgx.RowToStructByName[domain.Erasure], erasureOfTenantSQL, tenant)
}

// SaveErasure implements offboarding.ErasureTx.
func (t erasureTx) SaveErasure(e domain.Erasure) error {
	return t.Exec("erasure", saveErasureSQL, erasureArgs(&e)...)
}

// answers drops the answers that are kept of requests about the tenant. A cursor is a key.
func answers() projections.PersonalData {
	return projections.PersonalData{Name: "idempotency_answers", Erase: func(ctx context.Context, tx pgx.Tx, tenant uuid.UUID,
		after string) (next string, err error) {
		return next, tx.QueryRow(ctx, `SELECT erase_answers($1, $2, $3, $4)`, tenant, events.PartitionOf(tenant), after, erasureRows).
			Scan(&next)
	}}
}

// running runs a batch of a running erasure, and saves its progress with it. It has no effect if the erasure does not run.
func (s *Erasures) running(ctx context.Context, erasure uuid.UUID, batch func(pgx.Tx, *domain.Erasure) error) error {
	err := postgres.InTx(ctx, s.Store.Pool(), func(tx pgx.Tx) error {
		e, err := store.Find(ctx, tx, pgx.RowToStructByName[domain.Erasure], lockErasureSQL, erasure)
		if err != nil || e == nil {
			return err
		}
		if err := batch(tx, e); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, saveErasureSQL, erasureArgs(e)...)
		return err
	})
	return store.Unavailable(err)
}

// EraseLog implements offboarding.ErasureStore.
func (s *Erasures) EraseLog(ctx context.Context, erasure uuid.UUID) (more bool, err error) {
	err = s.running(ctx, erasure, func(tx pgx.Tx, e *domain.Erasure) error {
		var erased int64
		err := tx.QueryRow(ctx, `SELECT reached, erased FROM erase_events($1, $2, $3, $4, $5)`,
			e.TenantID, events.PartitionOf(e.TenantID), e.Cursor, min(e.Cursor+erasureSpan, e.UpTo), cmp.Or(s.Rows, erasureRows)).
			Scan(&e.Cursor, &erased)
		if err != nil {
			return fmt.Errorf("erasing events: %w", err)
		}
		e.Rewritten += erased
		more = e.Cursor < e.UpTo
		return nil
	})
	return more, err
}

// behindSQL reports for each generation of a consumer whether it has yet to fold an event of its topic ($3; 0: the log) up to a number
// ($4). It locks the checkpoints, as each fold and each chunk of a rebuild does: a later one reads the erased log.
const behindSQL = `SELECT c.joined AND c.position < CASE WHEN $3 = 0 THEN $4 ELSE least($4, h.topic_positions[$3]) END
 FROM consumer_checkpoints c JOIN log_heads h USING (partition) WHERE c.partition = $1 AND c.consumer = $2 ORDER BY c.generation
 FOR UPDATE OF c`

// publishingSQL names the publishers that have yet to publish events of the tenant ($3) up to a number ($2), and may hold old ones in
// memory: the relay, and replays of ranges. A replay that reads them now reads erased ones; it is not told from one that read them before.
const publishingSQL = `SELECT 'relay' FROM relay_cursors WHERE partition = $1 AND position < $2
 UNION SELECT 'replays' FROM replay_units u JOIN replays r ON r.id = u.replay_id
 WHERE r.state = '` + repair.ReplayRunning + `' AND r.kind = '` + events.ReplayRange + `' AND u.partition = $1
  AND u.cursor < least(u.upto, $2) AND coalesce(r.tenant_id, $3) = $3 ORDER BY 1`

// waiting names the readers that have yet to pass an erased event: the consumer of a read model; without one the relay or replays.
func waiting(ctx context.Context, tx pgx.Tx, m *projections.PersonalData, e *domain.Erasure) ([]string, error) {
	partition := events.PartitionOf(e.TenantID)
	if m.Consumer == "" {
		return store.FindAll(ctx, tx, "reading what has yet to be published", pgx.RowTo[string], publishingSQL, partition, e.UpTo,
			e.TenantID)
	}
	behind, err := store.FindAll(ctx, tx, "reading the positions of "+m.Consumer, pgx.RowTo[bool], behindSQL, partition, m.Consumer,
		int(m.Topic), e.UpTo)
	if slices.Contains(behind, true) {
		return []string{m.Consumer}, nil
	}
	return nil, err
}

// EraseModels implements offboarding.ErasureStore. Place names the read model that is erased next, and the cursor in it.
func (s *Erasures) EraseModels(ctx context.Context, erasure uuid.UUID) (waits []string, more bool, err error) {
	err = s.running(ctx, erasure, func(tx pgx.Tx, e *domain.Erasure) error {
		waits, more = nil, false
		at, cursor, _ := strings.Cut(e.Place, "\n")
		models := append(slices.Clone(s.Models), answers())
		for i := range models {
			m := &models[i]
			if at != "" && m.Name != at {
				continue
			}
			if waits, err = waiting(ctx, tx, m, e); err != nil || len(waits) > 0 {
				return err
			}
			if cursor, err = m.Erase(ctx, tx, e.TenantID, cursor); err != nil {
				return fmt.Errorf("erasing %s: %w", m.Name, err)
			}
			switch more = true; {
			case cursor != "":
				e.Place = m.Name + "\n" + cursor
			case i+1 < len(models):
				e.Place = models[i+1].Name
			default:
				e.Place, more = "", false
			}
			return nil
		}
		return fmt.Errorf("the erasure continues with %q, which this release does not know", at)
	})
	return waits, more, err
}
