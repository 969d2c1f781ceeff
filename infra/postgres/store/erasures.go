package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections"
)

var (
	_ commands.ErasureStore  = (*Erasures)(nil)
	_ commands.ErasureTx     = erasureTx{}
	_ commands.ErasureReader = (*Catalogue)(nil)
)

const (
	// erasureRows bounds the events that a batch changes, and erasureSpan the positions that it looks at: most may be of other tenants.
	erasureRows = 1000
	erasureSpan = 50_000
)

// Erasures erases personal data. It implements commands.ErasureStore.
type Erasures struct {
	Store  *Store
	Models []projections.PersonalData // the read models with personal data
	Rows   int                        // events in a batch; 0: 1,000
}

// erasureTx is a step of an erasure.
type erasureTx struct{ *changeTx }

// ChangeErasure implements commands.ErasureStore.
func (s *Erasures) ChangeErasure(ctx context.Context, tenant uuid.UUID, decide func(commands.ErasureTx) error) error {
	return s.Store.changeTenant(ctx, tenant, func(tx *changeTx) error { return decide(erasureTx{tx}) }, tenant)
}

const (
	erasureColumns     = `id, tenant_id, saga_id, state, reason, actor, requested_at, key, cursor, place, rewritten, ended_at`
	erasureOfTenantSQL = `SELECT ` + erasureColumns + ` FROM erasures WHERE tenant_id = $1`
	erasuresSQL        = `SELECT ` + erasureColumns + ` FROM erasures WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2`
	lockErasureSQL     = `SELECT ` + erasureColumns + ` FROM erasures WHERE id = $1 AND state = '` + domain.ErasureRunning + `' ORDER BY id FOR UPDATE`
	saveErasureSQL     = `INSERT INTO erasures (` + erasureColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
 ON CONFLICT (id) DO UPDATE SET state = excluded.state, key = excluded.key, cursor = excluded.cursor, place = excluded.place, rewritten = excluded.rewritten, ended_at = excluded.ended_at`
)

func scanErasure(row pgx.Row) (*domain.Erasure, error) {
	var e domain.Erasure
	err := row.Scan(&e.ID, &e.TenantID, &e.SagaID, &e.State, &e.Reason, &e.Actor, &e.RequestedAt, &e.Key, &e.Cursor, &e.Place, &e.Rewritten, &e.EndedAt)
	return one(&e, "erasure", err)
}

func erasureArgs(e *domain.Erasure) []any {
	return []any{e.ID, e.TenantID, e.SagaID, e.State, e.Reason, e.Actor, e.RequestedAt, e.Key, e.Cursor, e.Place, e.Rewritten, e.EndedAt}
}

// Erasure implements commands.ErasureReader.
func (c *Catalogue) Erasure(ctx context.Context, tenant uuid.UUID) (*domain.Erasure, error) {
	return get(ctx, c, scanErasure, erasureOfTenantSQL, tenant)
}

// Erasures implements commands.ErasureReader.
func (c *Catalogue) Erasures(ctx context.Context, p commands.Page) ([]domain.Erasure, error) {
	return list(ctx, c, scanErasure, erasuresSQL, afterID(p), p.Limit)
}

// Erasure implements commands.ErasureTx.
func (t erasureTx) Erasure(tenant uuid.UUID) (*domain.Erasure, error) {
	return scanErasure(t.tx.QueryRow(t.ctx, erasureOfTenantSQL, tenant))
}

// SaveErasure implements commands.ErasureTx.
func (t erasureTx) SaveErasure(e domain.Erasure) error {
	return t.exec("erasure", saveErasureSQL, erasureArgs(&e)...)
}

// LogErased implements commands.ErasureTx.
func (t erasureTx) LogErased(e *domain.Erasure) (erased bool, err error) {
	err = t.tx.QueryRow(t.ctx, `SELECT NOT EXISTS (SELECT FROM event_log_rows WHERE partition = $1 AND tenant_id = $2 AND position > $3 AND subject = ANY ($4))`,
		events.PartitionOf(e.TenantID), e.TenantID, e.Cursor, domain.ErasableSubjects()).Scan(&erased)
	if err != nil {
		return false, fmt.Errorf("reading the end of an erasure: %w", err)
	}
	return erased, nil
}

// answers drops the answers that are kept of requests about the tenant.
func answers() projections.PersonalData {
	return projections.PersonalData{Name: "idempotency_answers", Erase: func(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, _ *domain.Eraser, _ string) (string, error) {
		_, err := tx.Exec(ctx, `SELECT erase_answers($1, $2)`, tenant, events.PartitionOf(tenant))
		return "", err
	}}
}

// running runs a batch of a running erasure, and saves its progress with it; nothing if the erasure does not run.
func (s *Erasures) running(ctx context.Context, erasure uuid.UUID, batch func(pgx.Tx, *domain.Erasure, *domain.Eraser) error) error {
	err := postgres.InTx(ctx, s.Store.pool, func(tx pgx.Tx) error {
		e, err := scanErasure(tx.QueryRow(ctx, lockErasureSQL, erasure))
		if err != nil || e == nil {
			return err
		}
		groupings, err := readAllGroupings(ctx, tx)
		if err != nil {
			return err
		}
		if err := batch(tx, e, domain.NewEraser(e.Key, groupings)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, saveErasureSQL, erasureArgs(e)...)
		return err
	})
	return unavailable(err)
}

func readAllGroupings(ctx context.Context, tx pgx.Tx) ([]domain.Grouping, error) {
	rows, err := tx.Query(ctx, `SELECT feature, since, keys FROM feature_groupings`)
	if err != nil {
		return nil, fmt.Errorf("reading groupings: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Grouping])
}

const (
	loggedColumns  = `position, subject, dedupe_key, occurred_at, hash, body::text`
	toEraseSQL     = `SELECT ` + loggedColumns + ` FROM event_log_rows WHERE partition = $1 AND tenant_id = $2 AND position > $3 AND position <= $4 AND subject = ANY ($5) ORDER BY position LIMIT $6`
	loggedAtSQL    = `SELECT ` + loggedColumns + ` FROM event_log_rows WHERE partition = $1 AND tenant_id = $2 AND position = $3`
	eraseEventsSQL = `SELECT erase_events($1, $2, $3, $4, $5, $6)`
)

func scanLogged(row pgx.CollectableRow) (r domain.LoggedRow, err error) {
	var body string
	err = row.Scan(&r.Position, &r.Subject, &r.Key, &r.OccurredAt, &r.Hash, &body)
	r.Body = []byte(body)
	return r, err
}

// EraseLog implements commands.ErasureStore.
func (s *Erasures) EraseLog(ctx context.Context, erasure uuid.UUID) (more bool, err error) {
	err = s.running(ctx, erasure, func(tx pgx.Tx, e *domain.Erasure, eraser *domain.Eraser) error {
		limit, partition := s.Rows, events.PartitionOf(e.TenantID)
		if limit == 0 {
			limit = erasureRows
		}
		head, err := readHead(ctx, tx, partition)
		if err != nil {
			return err
		}
		upTo := min(e.Cursor+erasureSpan, head.Number)
		rows, err := tx.Query(ctx, toEraseSQL, partition, e.TenantID, e.Cursor, upTo, domain.ErasableSubjects(), limit)
		if err != nil {
			return fmt.Errorf("reading events to erase: %w", err)
		}
		list, err := pgx.CollectRows(rows, scanLogged)
		if err != nil {
			return fmt.Errorf("reading events to erase: %w", err)
		}
		if len(list) == limit {
			upTo = list[limit-1].Position
		}
		if err := eraseRows(ctx, tx, e, eraser, list); err != nil {
			return err
		}
		e.Cursor, more = upTo, upTo < head.Number
		return nil
	})
	return more, err
}

// eraseRows writes the rows that have personal data without it.
func eraseRows(ctx context.Context, tx pgx.Tx, e *domain.Erasure, eraser *domain.Eraser, list []domain.LoggedRow) error {
	partition := events.PartitionOf(e.TenantID)
	var positions []int64
	var keys, bodies []string
	var hashes [][]byte
	for i := range list {
		var first *domain.LoggedRow
		if list[i].Subject == events.UsageConflicted {
			var err error
			if first, err = firstOf(ctx, tx, e, eraser, &list[i]); err != nil {
				return err
			}
		}
		erased, changed, err := eraser.Row(list[i], first)
		if err != nil {
			return fmt.Errorf("erasing the event %d-%d: %w", partition, list[i].Position, err)
		}
		if changed {
			positions, keys, hashes, bodies = append(positions, erased.Position), append(keys, erased.Key), append(hashes, erased.Hash), append(bodies, string(erased.Body))
		}
	}
	if len(positions) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, eraseEventsSQL, e.TenantID, partition, positions, keys, hashes, bodies); err != nil {
		return fmt.Errorf("erasing events: %w", err)
	}
	e.Rewritten += int64(len(positions))
	return nil
}

// firstOf returns the first event of a conflict as the erasure leaves it: it is earlier in the log, perhaps in the same batch.
func firstOf(ctx context.Context, tx pgx.Tx, e *domain.Erasure, eraser *domain.Eraser, conflict *domain.LoggedRow) (*domain.LoggedRow, error) {
	number, err := conflict.FirstNumber()
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, loggedAtSQL, events.PartitionOf(e.TenantID), e.TenantID, number)
	if err != nil {
		return nil, fmt.Errorf("reading the first event of a conflict: %w", err)
	}
	first, err := pgx.CollectExactlyOneRow(rows, scanLogged)
	if err != nil {
		return nil, fmt.Errorf("reading the first event of a conflict: %w", err)
	}
	first, _, err = eraser.Row(first, nil)
	return &first, err
}

// behindSQL reports for each generation of a consumer whether it has yet to fold an event of its topic ($3; 0: the log) up to a number ($4). It locks the
// checkpoints, as each fold does: a later fold reads the erased log.
const behindSQL = `SELECT c.joined AND c.position < CASE WHEN $3 = 0 THEN $4 ELSE least($4, h.topic_positions[$3]) END
 FROM consumer_checkpoints c JOIN log_heads h USING (partition) WHERE c.partition = $1 AND c.consumer = $2 ORDER BY c.generation FOR UPDATE OF c`

func behind(ctx context.Context, tx pgx.Tx, m *projections.PersonalData, e *domain.Erasure) (waiting []string, err error) {
	if m.Consumer == "" {
		return nil, nil
	}
	rows, err := tx.Query(ctx, behindSQL, events.PartitionOf(e.TenantID), m.Consumer, int(m.Topic), e.Cursor)
	if err != nil {
		return nil, fmt.Errorf("reading checkpoints: %w", err)
	}
	late, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err != nil {
		return nil, fmt.Errorf("reading checkpoints: %w", err)
	}
	if slices.Contains(late, true) {
		waiting = []string{m.Consumer}
	}
	return waiting, nil
}

// EraseModels implements commands.ErasureStore. Place names the read model that is erased next, and its own place.
func (s *Erasures) EraseModels(ctx context.Context, erasure uuid.UUID) (waiting []string, more bool, err error) {
	err = s.running(ctx, erasure, func(tx pgx.Tx, e *domain.Erasure, eraser *domain.Eraser) error {
		waiting, more = nil, false
		at, place, _ := strings.Cut(e.Place, "\n")
		models := append(slices.Clone(s.Models), answers())
		for i := range models {
			m := &models[i]
			if at != "" && m.Name != at {
				continue
			}
			if waiting, err = behind(ctx, tx, m, e); err != nil || len(waiting) > 0 {
				return err
			}
			if place, err = m.Erase(ctx, tx, e.TenantID, eraser, place); err != nil {
				return fmt.Errorf("erasing %s: %w", m.Name, err)
			}
			switch more = true; {
			case place != "":
				e.Place = m.Name + "\n" + place
			case i+1 < len(models):
				e.Place = models[i+1].Name
			default:
				e.Place, more = "", false
			}
			return nil
		}
		return fmt.Errorf("the erasure continues with %q, which this release does not know", at)
	})
	return waiting, more, err
}
