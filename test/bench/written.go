package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Written counts the database's writes. The bytes of its write-ahead log and the transactions that wrote
// are exact. The others are its own statistics, to which each of its processes adds once a second.
type Written struct {
	WALBytes     float64 `json:"walBytes"`
	Writes       float64 `json:"writingTransactions"`
	Transactions float64 `json:"transactions"` // including read-only ones
	Syncs        float64 `json:"walSyncs"`
	FullPages    float64 `json:"fullPageImages"`
}

func (w Written) minus(o Written) Written { return w.plus(o.times(-1)) }

func (w Written) plus(o Written) Written {
	return Written{w.WALBytes + o.WALBytes, w.Writes + o.Writes, w.Transactions + o.Transactions, w.Syncs + o.Syncs,
		w.FullPages + o.FullPages}
}

func (w Written) times(by float64) Written {
	return Written{w.WALBytes * by, w.Writes * by, w.Transactions * by, w.Syncs * by, w.FullPages * by}
}

const (
	writtenSQL = `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8, pg_snapshot_xmax(pg_current_snapshot())::text::float8,
 (SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database)::float8, wal_fpi::float8 FROM pg_stat_wal`
	// PostgreSQL 18 counts the syncs of its write-ahead log with those of all files.
	syncsSQL      = `SELECT sum(fsyncs)::float8 FROM pg_stat_io WHERE object = 'wal' AND context = 'normal'`
	syncsBefore18 = `SELECT wal_sync::float8 FROM pg_stat_wal`
	majorSQL      = `SELECT current_setting('server_version_num')::int / 10000`
)

// writes returns the database's counters since its creation.
func (s *servers) writes(ctx context.Context) (w Written, err error) {
	address, err := inDatabase(s.database.AdminURL(), "postgres")
	if err != nil {
		return w, err
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return w, fmt.Errorf("reach the database as its superuser: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var major int
	err = errors.Join(conn.QueryRow(ctx, writtenSQL).Scan(&w.WALBytes, &w.Writes, &w.Transactions, &w.FullPages),
		conn.QueryRow(ctx, majorSQL).Scan(&major))
	syncs := syncsSQL
	if major < 18 {
		syncs = syncsBefore18
	}
	if err = errors.Join(err, conn.QueryRow(ctx, syncs).Scan(&w.Syncs)); err != nil {
		return w, fmt.Errorf("read the database's statistics: %w", err)
	}
	return w, nil
}

// spent is the cost of a measurement: processors and database.
type spent struct {
	cpu     Taken
	written Written
	did     rate
}

func (s spent) plus(o spent) spent {
	return spent{s.cpu.plus(o.cpu), s.written.plus(o.written), s.did.plus(o.did)}
}

// measure begins a measurement; the returned function ends it.
func (s *servers) measure(ctx context.Context) (func(did rate) (spent, error), error) {
	written, err := s.writes(ctx)
	cpu := s.meter.cpuTime()
	return func(did rate) (spent, error) {
		took := s.meter.cpuTime().minus(cpu)
		now, err := s.writes(ctx)
		return spent{took, now.minus(written), did}, err
	}, err
}

// cost records the cost of a measurement and the memory at its end.
func (f *Figure) cost(s spent, m Memory) {
	f.CPU, f.Written, f.Memory = cpuOf(s.cpu, s.did), writtenOf(s), m
}

// Writes is Written in total and for each event.
type Writes struct {
	All    Written  `json:"all"`
	Each   Written  `json:"each"`
	Events int      `json:"events"`
	Limit  *Written `json:"limitEach,omitempty"` // of the raw limit, for each event
}

func writtenOf(s spent) Writes {
	return Writes{All: s.written, Each: s.written.times(1 / max(1, float64(s.did.events))), Events: s.did.events}
}

// writtenRow returns a figure's row in the report.
func (f *Figure) writtenRow() string {
	e, limit := &f.Written.Each, "–"
	if f.Written.Limit != nil {
		limit = fmt.Sprintf("%s, %s", short(f.Written.Limit.WALBytes), fine(f.Written.Limit.Writes))
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", f.ID, short(e.WALBytes), fine(e.Writes), fine(e.Transactions),
		fine(e.Syncs), fine(e.FullPages), limit)
}

// fine formats a number that is mostly far below one.
func fine(v float64) string {
	if v >= 1 {
		return short(v)
	}
	return fmt.Sprintf("%.4f", v)
}
