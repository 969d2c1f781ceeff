package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// serverPair is a PostgreSQL of the test's own with a streaming standby, behind one address.
// The address leads to the primary, before and after a failover.
type serverPair struct {
	t       testing.TB
	address *proxy // to the primary
	link    *proxy // from the standby to the primary
	dir     string
	made    int      // servers so far
	more    []string // settings of the servers: names and values

	host    atomic.Value // of the primary, a string
	primary *local.Postgres
	name    string          // of the database
	standby *local.Postgres // nil: no standby
	former  *local.Postgres // the primary before the last promotion; ended
}

// The login that the standby streams with.
const (
	standbyLogin    = "standby_login"
	standbyPassword = "only for a test"
	standbyName     = "standby"
)

// newServerPair starts the primary, with more settings, names and values. attach adds the standby.
func newServerPair(t testing.TB, settings ...string) *serverPair {
	t.Helper()
	p := &serverPair{t: t, dir: localtest.Folder(t), more: settings, name: "meterplex"}
	dir := p.newDir()
	p.lead(p.start(dir))
	t.Cleanup(p.end) // before the proxies end
	_, err := migrate(t.Context(), p.primary.URL())
	must.OK(t, err)
	p.admin(p.primary, fmt.Sprintf(`CREATE ROLE %s LOGIN REPLICATION PASSWORD '%s'`, standbyLogin, standbyPassword))
	p.link.start()
	return p
}

// sharedServer has a database of the server that the tests of this binary share, without a standby. A test that kills it must not
// run in parallel with others.
func sharedServer(t testing.TB) *serverPair {
	t.Helper()
	database, err := url.Parse(localtest.Migrated(t, migrate))
	must.OK(t, err)
	p := &serverPair{t: t, name: strings.TrimPrefix(database.Path, "/")}
	p.lead(localtest.Postgres(t).Postgres)
	return p
}

// lead lets the addresses lead to the first primary.
func (p *serverPair) lead(primary *local.Postgres) {
	toPrimary := func() string { return p.host.Load().(string) }
	p.address, p.link = newProxy(p.t, toPrimary), newProxy(p.t, toPrimary)
	p.primary = primary
	p.host.Store(hostOf(primary.URL()))
	p.address.start()
}

// newDir is the data directory of another server.
func (p *serverPair) newDir() string {
	p.made++
	return filepath.Join(p.dir, fmt.Sprint("server-", p.made))
}

// start starts a server on a data directory. wal_keep_size keeps the WAL that a lagging
// standby needs; there are no slots.
func (p *serverPair) start(dir string) *local.Postgres {
	p.t.Helper()
	settings := map[string]string{
		"shared_buffers": "64MB", "max_connections": "200", "max_wal_size": "1GB", "min_wal_size": "64MB",
		"wal_keep_size": "2GB", "wal_retrieve_retry_interval": "100ms",
	}
	for n := 0; n+1 < len(p.more); n += 2 {
		settings[p.more[n]] = p.more[n+1]
	}
	server, err := local.StartPostgres(context.WithoutCancel(p.t.Context()), local.PostgresConfig{DataDir: dir, Settings: settings})
	must.OK(p.t, err)
	return server
}

// startLike starts a new server with an empty database. The instances keep their login, and so its password.
func (p *serverPair) startLike(server *local.Postgres) *local.Postgres {
	p.t.Helper()
	dir := p.newDir()
	must.OK(p.t, os.MkdirAll(filepath.Join(dir, "postgres"), 0o755))
	out, err := exec.Command("cp", "-a", filepath.Join(server.Dir(), "passwords.json"), filepath.Join(dir, "postgres")).CombinedOutput()
	if err != nil {
		p.t.Fatalf("copy the passwords: %v: %s", err, out)
	}
	return p.start(dir)
}

// end ends the servers.
func (p *serverPair) end() {
	for _, server := range []*local.Postgres{p.standby, p.primary, p.former} {
		if server == nil {
			continue
		}
		endAtOnce(server)
		if err := server.Stop(context.Background()); err != nil {
			p.t.Error(err)
		}
	}
}

// url is the owner's address of the database, adminURL the superuser's. Both lead to the present primary.
func (p *serverPair) url() string {
	return atHost(databaseAt(p.primary.URL(), p.name), p.address.addr())
}

func (p *serverPair) adminURL() string {
	return atHost(databaseAt(p.primary.AdminURL(), p.name), p.address.addr())
}

// ofDatabase is the superuser's address of a server's database "meterplex".
func ofDatabase(server *local.Postgres) string { return databaseAt(server.AdminURL(), "meterplex") }

// databaseAt returns the address of another database of a server.
func databaseAt(address, name string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	u.Path = "/" + name
	return u.String()
}

// runOn runs do as the superuser on one server, whatever the server's role is.
func (p *serverPair) runOn(server *local.Postgres, do func(ctx context.Context, conn *pgx.Conn) error) error {
	ctx := p.t.Context()
	conn, err := pgx.Connect(ctx, databaseAt(server.AdminURL(), p.name))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(ctx, conn)
}

func (p *serverPair) admin(server *local.Postgres, statements ...string) {
	p.t.Helper()
	err := p.runOn(server, func(ctx context.Context, conn *pgx.Conn) error {
		for _, statement := range statements {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
	must.OK(p.t, err)
}

// attach makes a standby by a base backup of the running primary, as pg_basebackup does, which the embedded server lacks, and waits until
// it streams. Pages may be torn, and files come and go meanwhile, which cp reports: recovery from the WAL since the backup's start repairs
// both.
func (p *serverPair) attach() {
	p.t.Helper()
	dir, label := p.newDir(), ""
	data := filepath.Join(dir, "postgres", "data")
	err := p.runOn(p.primary, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, `SELECT pg_backup_start('rehearsal', true)`); err != nil {
			return err
		}
		copied := exec.Command("sh", "-c",
			`mkdir -p "$2" && cp -a "$1" "$2/postgres" 2>/dev/null; cd "$2/postgres" && rm -f port postgres.log data/postmaster.* && cd data &&
			for d in pg_wal pg_replslot pg_dynshmem pg_notify pg_serial pg_snapshots pg_stat_tmp pg_subtrans; do rm -rf $d/*; done`,
			"sh", p.primary.Dir(), dir)
		if out, err := copied.CombinedOutput(); err != nil {
			return fmt.Errorf("copy the primary: %w: %s", err, out)
		}
		return conn.QueryRow(ctx, `SELECT labelfile FROM pg_backup_stop(false)`).Scan(&label)
	})
	must.OK(p.t, err)
	appendTo(p.t, filepath.Join(data, "backup_label"), label)
	appendTo(p.t, filepath.Join(data, "standby.signal"), "")
	appendTo(p.t, filepath.Join(data, "postgresql.auto.conf"),
		fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=%s password=''%s'' application_name=%s'\n",
			portOf(p.t, p.link.addr()), standbyLogin, standbyPassword, standbyName))
	p.standby = p.start(dir)
	p.awaitStandby()
}

// appendTo adds a text to a file of a server, which may run as another user than the test. A missing file is created.
func appendTo(t testing.TB, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must.OK(t, err)
	defer f.Close()
	_, err = f.WriteString(text)
	must.OK(t, err)
	folder, err := os.Stat(filepath.Dir(path))
	must.OK(t, err)
	owner := folder.Sys().(*syscall.Stat_t)
	must.OK(t, os.Chown(path, int(owner.Uid), int(owner.Gid)))
}

// awaitStandby waits until the standby has replayed all commits so far.
func (p *serverPair) awaitStandby() {
	p.t.Helper()
	err := p.runOn(p.primary, func(ctx context.Context, conn *pgx.Conn) error {
		var end string
		if err := conn.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&end); err != nil {
			return err
		}
		within(p.t, "the standby streams and has replayed all", func(ctx context.Context) (bool, string) {
			n := 0
			err := conn.QueryRow(ctx,
				`SELECT count(*) FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming'
					AND replay_lsn >= $2::text::pg_lsn`,
				standbyName, end).Scan(&n)
			return err == nil && n == 1, fmt.Sprint(n, err)
		})
		return nil
	})
	must.OK(p.t, err)
}

// synchronous sets whether each COMMIT waits for the standby. It returns when the standby
// has caught up.
func (p *serverPair) synchronous(yes bool) {
	p.t.Helper()
	names := waitedFor(yes)
	p.admin(p.primary, fmt.Sprintf(`ALTER SYSTEM SET synchronous_standby_names = '%s'`, names), `SELECT pg_reload_conf()`)
	within(p.t, "synchronous_standby_names is in force", func(ctx context.Context) (bool, string) {
		n, is := 0, "?"
		err := p.runOn(p.primary, func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx,
				`SELECT current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication
 WHERE sync_state = 'sync')`).Scan(&is, &n)
		})
		return err == nil && is == names && (n == 1) == yes, fmt.Sprint(is, n, err)
	})
	if yes {
		p.awaitStandby()
	}
}

// endAtOnce is PostgreSQL's immediate shutdown. A clean one would wait for a standby that cannot be reached, and sessions whose
// postmaster is killed still write files for some milliseconds.
func endAtOnce(server *local.Postgres) {
	_ = syscall.Kill(server.PID(), syscall.SIGQUIT) // it may have ended
	<-server.Done()
}

// killPrimary is kill -9 of the postmaster. Its sessions may live for some milliseconds
// longer, so the address is closed first.
func (p *serverPair) killPrimary() {
	p.t.Helper()
	p.address.set(cuts)
	must.OK(p.t, syscall.Kill(p.primary.PID(), syscall.SIGKILL))
	<-p.primary.Done()
}

// crash is kill -9 of the postmaster, and its start on the same data.
func (p *serverPair) crash() {
	p.t.Helper()
	p.killPrimary()
	p.recoverPrimary()
}

// recoverPrimary starts a killed primary on its data.
func (p *serverPair) recoverPrimary() {
	p.t.Helper()
	must.OK(p.t, p.primary.Restart(context.WithoutCancel(p.t.Context())))
	p.address.set(passes)
}

// crashBackend is kill -9 of one session of the service. The postmaster ends the others
// and recovers; its process id and start time stay the same.
func (p *serverPair) crashBackend() {
	p.t.Helper()
	pid, before, after := 0, "", ""
	started := `SELECT pg_postmaster_start_time()::text`
	if err := p.runOn(p.primary, func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, started).Scan(&before)
		if err == nil {
			err = conn.QueryRow(ctx, `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'meterplex'
 ORDER BY xact_start NULLS LAST LIMIT 1`).Scan(&pid)
		}
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err == nil {
			within(p.t, "the postmaster ends all other sessions", func(ctx context.Context) (bool, string) {
				return conn.Ping(ctx) != nil, ""
			})
		}
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	within(p.t, "the server has recovered", func(context.Context) (bool, string) {
		err := p.runOn(p.primary, func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, started).Scan(&after) })
		return err == nil, fmt.Sprint(err)
	})
	if before != after {
		p.t.Errorf("the postmaster restarted (started at %s, then at %s): only a backend was to crash", before, after)
	}
	p.address.set(passes)
}

// promote makes the standby the primary, after the death of the old one. If waiting is true,
// each COMMIT waits for the next standby, which does not exist yet.
func (p *serverPair) promote(waiting bool) {
	p.t.Helper()
	appendTo(p.t, filepath.Join(p.standby.Dir(), "data", "postgresql.auto.conf"),
		fmt.Sprintf("synchronous_standby_names = '%s'\n", waitedFor(waiting)))
	p.admin(p.standby, `SELECT pg_reload_conf()`, `SELECT pg_promote(false)`) // to wait in the statement may be a conflict with recovery
	within(p.t, "the standby is promoted", func(ctx context.Context) (bool, string) {
		recovers := true
		err := p.runOn(p.standby, func(_ context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&recovers)
		})
		return err == nil && !recovers, fmt.Sprint(err)
	})
	p.promoted()
}

// promoted leads the address to the standby, which is a primary by now.
func (p *serverPair) promoted() {
	p.t.Helper()
	p.replace(p.standby)
	p.standby = nil
	p.address.set(passes)
}

// waitedFor is the setting synchronous_standby_names.
func waitedFor(yes bool) string {
	if yes {
		return standbyName
	}
	return ""
}

// replace makes another server the primary. The present primary becomes the former one;
// the data of the previous former one are removed.
func (p *serverPair) replace(by *local.Postgres) {
	if p.former != nil {
		if err := p.former.Stop(context.Background()); err != nil {
			p.t.Error(err)
		}
		_ = os.RemoveAll(p.former.Dir())
	}
	p.former, p.primary = p.primary, by
	p.host.Store(hostOf(by.URL()))
}

// whileCancelled calls do while every wait for the standby is cancelled.
func (p *serverPair) whileCancelled(do func()) {
	p.t.Helper()
	done := make(chan struct{})
	cancelled := make(chan int, 1)
	go func() {
		sum := 0
		defer func() { cancelled <- sum }()
		for {
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
			n := 0
			if err := p.runOn(p.primary, func(ctx context.Context, conn *pgx.Conn) error {
				return conn.QueryRow(ctx, `SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
 WHERE wait_event = 'SyncRep' AND datname = current_database()`).Scan(&n)
			}); err != nil {
				p.t.Error(err)
			}
			sum += n
		}
	}()
	do()
	close(done)
	log, err := os.ReadFile(filepath.Join(p.primary.Dir(), "postgres.log"))
	must.OK(p.t, err)
	if n := <-cancelled; n == 0 || !strings.Contains(string(log), "canceling wait for synchronous replication") {
		p.t.Errorf("%d waits for the standby were cancelled; want at least one, and a line in the server's log", n)
	}
}

func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Host
}

func atHost(text, host string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	u.Host = host
	return u.String()
}
