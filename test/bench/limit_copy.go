package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/events"
)

// The tables that raw limits are measured on: the log's own columns and indexes.
const (
	copyTable   = "bench_copy"
	singleTable = "bench_single"
	commitTable = "bench_commit"
)

// cloneTables creates them, owned by the login of the run.
func (s *subject) cloneTables(ctx context.Context, tables ...string) error {
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, t := range tables {
		sql := "CREATE TABLE IF NOT EXISTS " + pgx.Identifier{t}.Sanitize() + " (LIKE event_log_rows INCLUDING ALL)"
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("make a table like the log: %w", err)
		}
	}
	return nil
}

// Columns of the log's table, in its order, that differ from row to row.
const (
	columnPosition  = 0
	columnEventID   = 4
	columnTenant    = 5
	columnPartition = 10
	columnDedupe    = 13
)

// copyHeader and copyTrailer frame a binary COPY (PostgreSQL's manual, "COPY").
const (
	copyHeader  = 19
	copyTrailer = 2
)

// copier copies rows in the binary format. They equal the service's rows, except for values
// that must differ.
type copier struct {
	raw     []byte
	rows    [][]int // offsets of each row's columns
	tenants []tenant
	written []int64 // by tenant
	turn    int
	mark    byte // part of each key, so that no two copiers use the same
}

var sampleSQL = events.SQL(`COPY (SELECT * FROM event_log_rows WHERE topic = {usage.raw} ORDER BY partition, position
	LIMIT 1) TO STDOUT (FORMAT binary)`)

// newCopier reads a row of the log and makes a buffer of size such rows.
func newCopier(ctx context.Context, conn *pgconn.PgConn, size int, tenants []tenant, mark byte) (*copier, error) {
	var sample bytes.Buffer
	if _, err := conn.CopyTo(ctx, &sample, sampleSQL); err != nil {
		return nil, fmt.Errorf("read a row of the log: %w", err)
	}
	if sample.Len() <= copyHeader+copyTrailer {
		return nil, errors.New("the log has no usage to copy a row from")
	}
	all := sample.Bytes()
	row := all[copyHeader : len(all)-copyTrailer]
	columns := columnsOf(row)
	c := &copier{raw: bytes.Clone(all[:copyHeader]), tenants: tenants, written: make([]int64, len(tenants)), mark: mark}
	for range size {
		at := make([]int, len(columns))
		for i := range columns {
			at[i] = columns[i] + len(c.raw)
		}
		c.rows, c.raw = append(c.rows, at), append(c.raw, row...)
	}
	c.raw = append(c.raw, 0xff, 0xff)
	return c, nil
}

// columnsOf returns the offset of each column's value in a row.
func columnsOf(row []byte) []int {
	at := make([]int, binary.BigEndian.Uint16(row))
	next := 2
	for i := range at {
		length := int32(binary.BigEndian.Uint32(row[next:]))
		at[i] = next + 4
		next += 4 + int(max(0, length))
	}
	return at
}

// fill gives the rows new keys of one tenant, as a request does.
func (c *copier) fill() {
	t := c.turn % len(c.tenants)
	c.turn++
	for _, at := range c.rows {
		c.written[t]++
		n := uint64(c.written[t])
		// Each copier has positions of its own range, as each partition of the log has.
		binary.BigEndian.PutUint64(c.raw[at[columnPosition]:], uint64(c.mark)<<40|n)
		binary.BigEndian.PutUint64(c.raw[at[columnEventID]+8:], uint64(c.mark)<<40|n)
		copy(c.raw[at[columnTenant]:], c.tenants[t].id[:])
		binary.BigEndian.PutUint16(c.raw[at[columnPartition]:], uint16(c.tenants[t].partition))
		key := c.raw[at[columnDedupe]:]
		key[2] = 'A' + c.mark // behind "u/"
		putDigits(key[dedupePrefix:dedupePrefix+idDigits], int(n))
	}
}

// dedupePrefix is the length of the prefix before the number: "u/" and an event's id.
const dedupePrefix = 2 + 12 + 1

func (c *copier) copy(ctx context.Context, conn *pgconn.PgConn) error {
	c.fill()
	tag, err := conn.CopyFrom(ctx, bytes.NewReader(c.raw), "COPY "+copyTable+" FROM STDIN (FORMAT binary)")
	if err == nil && tag.RowsAffected() != int64(len(c.rows)) {
		err = fmt.Errorf("%d rows of %d", tag.RowsAffected(), len(c.rows))
	}
	if err != nil {
		return fmt.Errorf("copy rows: %w", err)
	}
	return nil
}

// copiers are the connections of B1's limit.
type copiers struct {
	conns []*pgx.Conn
	list  []*copier
}

func (s *subject) newCopiers(ctx context.Context, clients, size int) (*copiers, error) {
	if err := s.cloneTables(ctx, copyTable); err != nil {
		return nil, err
	}
	c := &copiers{}
	for i := range clients {
		conn, err := pgx.Connect(ctx, s.databaseURL)
		if err != nil {
			c.close()
			return nil, fmt.Errorf("reach the database: %w", err)
		}
		c.conns = append(c.conns, conn)
		one, err := newCopier(ctx, conn.PgConn(), size, rotate(s.tenants, i), byte(i))
		if err != nil {
			c.close()
			return nil, err
		}
		c.list = append(c.list, one)
	}
	return c, nil
}

func (c *copiers) close() {
	for _, conn := range c.conns {
		_ = conn.Close(context.Background())
	}
}

// measure copies for a duration.
func (c *copiers) measure(ctx context.Context, d time.Duration) (rate, error) {
	return closed(ctx, len(c.list), d, func(client int) (int, error) {
		return len(c.list[client].rows), c.list[client].copy(ctx, c.conns[client].PgConn())
	})
}

// rotate returns the list from another start for each client, so that the clients do not all
// write to one partition at a time.
func rotate[T any](list []T, by int) []T {
	by %= len(list)
	return append(append([]T{}, list[by:]...), list[:by]...)
}
