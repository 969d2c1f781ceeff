package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// foldedTables are the tables of folds, with their keys, and the columns that do not follow from the log.
var foldedTables = []struct{ name, key, own string }{
	{"tenants", "id", ""}, {"tenant_policies", "tenant_id, from_position", ""}, {"api_keys", "id", "secret_hash"},
	{"features", "lookup_key", ""},
	{"feature_groupings", "feature, since", ""}, {"plans", "key", ""}, {"prices", "key, version", ""}, {"subscriptions", "id", ""},
	{"subscription_history", "tenant_id, from_position", ""}, {"thresholds", "id", ""},
	{"webhooks", "id", "cursor,replay_after,replay_until,failing_since,last_success_at,lease,next_at"},
}

// RepairedTable is the repair of a table.
type RepairedTable struct {
	Table     string `json:"table"`
	Different int64  `json:"different"` // rows that differed from the log, or were missing
	Unknown   int64  `json:"unknown"`   // rows that no event made
	Left      int64  `json:"left"`      // of both, because the login may not write or delete them
}

// repairSpan bounds the positions of a partition that one statement of a repair reads.
const repairSpan = 100_000

// RepairCatalogue folds the whole log into empty tables, and replaces the rows of the catalogue that differ. Only the last events are
// folded, and rows written, while it holds all heads. It cannot restore the hash of a key's secret. Only a superuser may change rows of
// tables that the service only appends to, and delete rows.
func RepairCatalogue(ctx context.Context, pool postgres.Pool) (found []RepairedTable, err error) {
	err = postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		r := &catalogueRepair{Tx: Tx{ctx: ctx, tx: eventlog.In(tx)}}
		r.Queue("role of the repair", `SELECT set_config('role', 'none', true) FROM pg_roles WHERE rolname = session_user AND rolsuper`)
		for _, table := range foldedTables {
			// statements find it before the other
			r.Queue("table of the repair", `CREATE TEMP TABLE `+table.name+` (LIKE public.`+table.name+` INCLUDING ALL) ON COMMIT DROP`)
		}
		if err := r.foldAll(`SELECT position FROM log_heads ORDER BY partition`); err != nil {
			return err
		}
		if err := r.foldAll(`SELECT position FROM log_heads ORDER BY partition FOR UPDATE`); err != nil {
			return err
		}
		found = nil
		for _, table := range foldedTables {
			one, err := r.replace(table.name, table.key, table.own)
			if err != nil {
				return fmt.Errorf("repairing %s: %w", table.name, err)
			}
			found = append(found, one)
		}
		return nil
	})
	return found, err
}

// catalogueRepair is a repair up to the positions that it has folded.
type catalogueRepair struct {
	Tx
	folded [events.Partitions]int64
}

// foldAll folds the events up to the heads.
func (r *catalogueRepair) foldAll(headsSQL string) error {
	heads, err := FindAll(r.ctx, r.tx, "reading heads", pgx.RowTo[int64], headsSQL)
	if err != nil {
		return err
	}
	for p, head := range heads {
		for after := &r.folded[p]; *after < head; *after = min(*after+repairSpan, head) {
			if err := r.foldSome(int16(p), *after, min(*after+repairSpan, head)); err != nil {
				return fmt.Errorf("folding partition %d: %w", p, err)
			}
		}
	}
	return nil
}

const catalogueEventsSQL = `SELECT subject::int, tenant_id, occurred_at, position, payload(l) FROM event_log_rows l
 WHERE partition = $1 AND position > $2 AND position <= $3 AND subject = ANY ($4) ORDER BY position`

func (r *catalogueRepair) foldSome(partition int16, after, upTo int64) error {
	var subjects []int16
	for s := range maps.Keys(folds) {
		subjects = append(subjects, int16(s))
	}
	rows, err := r.tx.Query(r.ctx, catalogueEventsSQL, partition, after, upTo, subjects)
	if err != nil {
		return err
	}
	var e events.Pending
	var subject int
	at := events.Position{Partition: partition}
	_, err = pgx.ForEachRow(rows, []any{&subject, &e.TenantID, &e.OccurredAt, &at.Number, &e.Payload}, func() error {
		e.Subject, e.Payload = events.Subject(subject), slices.Clone(e.Payload)
		r.fold(&e, at)
		return nil
	})
	if err == nil {
		err = r.tx.Flush(r.ctx)
	}
	return err
}

const (
	// columnsSQL lists the columns that follow from the log, as the assignments of a conflict, and the rights of the login.
	columnsSQL = `SELECT string_agg(format('%1$I = excluded.%1$I', attname), ', '), has_table_privilege($1, 'UPDATE'),
		has_table_privilege($1, 'DELETE')
 FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attname <> ALL ($2)`

	rightRow   = `EXISTS (SELECT FROM public.{table} r WHERE to_jsonb(r) - $1::text[] = to_jsonb(n) - $1::text[])`
	sameKey    = `EXISTS (SELECT FROM pg_temp.{table} n WHERE ({n.key}) = ({r.key}))`
	repairSQL  = `INSERT INTO public.{table} SELECT n.* FROM pg_temp.{table} n WHERE NOT ` + rightRow + ` ON CONFLICT ({key}) DO `
	unknownSQL = `DELETE FROM public.{table} r WHERE NOT ` + sameKey
	countSQL   = `SELECT (SELECT count(*) FROM pg_temp.{table} n WHERE NOT ` + rightRow +
		`), (SELECT count(*) FROM public.{table} r WHERE NOT ` + sameKey + `)`
)

// replace writes the rows of a table that differ, and deletes those that no event made, as far as the login may.
func (r *catalogueRepair) replace(table, key, own string) (found RepairedTable, err error) {
	columns := func(of string) string { return of + strings.ReplaceAll(key, ", ", ", "+of) }
	named := strings.NewReplacer("{table}", table, "{key}", key, "{n.key}", columns("n."), "{r.key}", columns("r."))
	owned, assignments := strings.Split(own, ","), "NOTHING"
	var set string
	var mayUpdate, mayDelete bool
	found.Table = table
	if err := r.tx.QueryRow(r.ctx, columnsSQL, "public."+table, owned).Scan(&set, &mayUpdate, &mayDelete); err != nil {
		return found, err
	}
	if err := r.tx.QueryRow(r.ctx, named.Replace(countSQL), owned).Scan(&found.Different, &found.Unknown); err != nil {
		return found, err
	}
	if found.Different+found.Unknown == 0 {
		return found, nil
	}
	if mayUpdate {
		assignments = "UPDATE SET " + set
	}
	r.Queue("repair of "+table, named.Replace(repairSQL)+assignments, owned)
	if mayDelete {
		r.Queue("repair of "+table, named.Replace(unknownSQL))
	}
	var different, unknown int64
	err = r.tx.QueryRow(r.ctx, named.Replace(countSQL), owned).Scan(&different, &unknown)
	found.Left = different + unknown
	return found, err
}
