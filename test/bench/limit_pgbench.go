package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// pgbenchScript is one insert and commit of a row like those of the log: the same columns,
// the same indexes, a body of the same size.
const pgbenchScript = `INSERT INTO bench_single (position, previous_position, recorded_at, occurred_at, event_id, tenant_id,
 correlation_id, causation_id, epoch, origin, partition, topic, subject, dedupe_key, body)
 SELECT n, n - 1, now(), now(), gen_random_uuid(), '01980000-0000-7000-8000-000000000001', '01980000-0000-7000-8000-000000000002', NULL,
 1, 1, :client_id % 16, 1, 1, 'u/abcdefghijkl-' || n,
 '[5,"api_calls",{"region":"eu-1"}]'
 FROM nextval('bench_single_position') n;
`

// insertScript is the same for the Go client.
const insertScript = `INSERT INTO bench_single (position, previous_position, recorded_at, occurred_at, event_id, tenant_id,
 correlation_id, causation_id, epoch, origin, partition, topic, subject, dedupe_key, body)
 SELECT n, n - 1, now(), now(), gen_random_uuid(), '01980000-0000-7000-8000-000000000001', '01980000-0000-7000-8000-000000000002', NULL,
 1, 1, $1::int % 16, 1, 1, 'u/abcdefghijkl-' || n,
 '[5,"api_calls",{"region":"eu-1"}]'
 FROM nextval('bench_single_position') n`

// inserter is the limit of B2: one row in one commit, as many at once as there are clients.
type inserter struct {
	subject *subject
	clients int
	program string // pgbench, "" if not found
	script  string // its file
	conns   []*pgx.Conn
}

func (s *subject) newInserter(ctx context.Context, clients int, scratch string) (*inserter, error) {
	if err := s.cloneTables(ctx, singleTable); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "CREATE SEQUENCE bench_single_position CACHE 32"); err != nil {
		return nil, fmt.Errorf("make a sequence: %w", err)
	}
	in := &inserter{subject: s, clients: clients, program: s.servers.pgbench(), script: filepath.Join(scratch, "insert.sql")}
	if in.program == "" {
		return in, in.connect(ctx)
	}
	return in, os.WriteFile(in.script, []byte(pgbenchScript), 0o600)
}

// pgbench returns the path of the program beside the server's own, or else in the PATH.
func (s *servers) pgbench() string {
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", s.database.PID())); err == nil {
		beside := filepath.Join(filepath.Dir(exe), "pgbench")
		if _, err := os.Stat(beside); err == nil {
			return beside
		}
	}
	path, _ := exec.LookPath("pgbench")
	return path
}

func (in *inserter) connect(ctx context.Context) error {
	for range in.clients {
		conn, err := pgx.Connect(ctx, in.subject.databaseURL)
		if err != nil {
			in.close()
			return fmt.Errorf("reach the database: %w", err)
		}
		in.conns = append(in.conns, conn)
	}
	return nil
}

func (in *inserter) close() {
	for _, conn := range in.conns {
		_ = conn.Close(context.Background())
	}
}

// how names the program that measures.
func (in *inserter) how() string {
	if in.program == "" {
		return "a loop in Go (no pgbench was found)"
	}
	return "pgbench -M prepared"
}

// measure returns the number of committed inserts in a second.
func (in *inserter) measure(ctx context.Context, d time.Duration) (float64, error) {
	if in.program != "" {
		return in.pgbench(ctx, d)
	}
	r, err := closed(ctx, in.clients, d, func(client int) (int, error) {
		_, err := in.conns[client].Exec(ctx, insertScript, client)
		return 1, err
	})
	return r.perSecond(), err
}

var transactionsPerSecond = regexp.MustCompile(`(?m)^tps = ([0-9.]+) `)

func (in *inserter) pgbench(ctx context.Context, d time.Duration) (float64, error) {
	u, err := url.Parse(in.subject.databaseURL)
	if err != nil {
		return 0, errors.New("the database's address is not a URL")
	}
	password, _ := u.User.Password()
	cmd := exec.CommandContext(ctx, in.program, "-n", "-M", "prepared", "-c", strconv.Itoa(in.clients), "-j", "2",
		"-T", strconv.Itoa(int(d.Seconds())), "-f", in.script, "-h", u.Hostname(), "-p", u.Port(), "-U", u.User.Username(), u.Path[1:])
	cmd.Env = append(os.Environ(), "PGPASSWORD="+password, "PGSSLMODE=disable")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("run pgbench: %w: %.500s", err, out)
	}
	found := transactionsPerSecond.FindSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("pgbench printed no rate: %.500s", out)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}
