package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/infra/local/folder"
	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/childtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestPostgresKeepsItsDataAndAddress(t *testing.T) {
	dir := filepath.Join(openDir(t), `a b,c\d=é%20`)
	p := startPostgres(t, PostgresConfig{DataDir: dir})
	before := p.URL()
	exec1(t, before, `CREATE TABLE kept AS SELECT 42 AS n`)
	must.OK(t, p.Stop(t.Context()))
	must.OK(t, p.Stop(t.Context()))
	childtest.AwaitExit(t, p.PID())
	p = startPostgres(t, PostgresConfig{DataDir: dir, Roles: []string{"one_$1", "two"}})
	const rights = `SELECT rolcreaterole || ' ' || pg_has_role('one_$1', 'MEMBER') || ' ' || pg_has_role('two', 'MEMBER') FROM pg_roles
		WHERE rolname = current_user`
	if got := query1[string](t, p.URL(), rights); got != "false true true" {
		t.Errorf("the owner's CREATEROLE and memberships: %s", got)
	}
	exec1(t, p.URL(), `SET ROLE two`)
	if p.URL() != before {
		t.Errorf("address %s, before %s", p.URL(), before)
	}
	if n := query1[int](t, p.URL(), `SELECT n FROM kept`); n != 42 {
		t.Errorf("%d, want 42", n)
	}
}

func TestPostgresSetup(t *testing.T) {
	p := startPostgres(t, PostgresConfig{DataDir: openDir(t), Settings: map[string]string{"work_mem": "7MB"}})
	if kept := query1[string](t, p.URL(), `SHOW work_mem`); kept != "7MB" {
		t.Errorf("work_mem is %s", kept)
	}
	checkSetup(t, p)
	info, err := os.Stat(filepath.Join(p.dir, "passwords.json"))
	must.OK(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("passwords have mode %v", info.Mode())
	}
}

func checkSetup(t *testing.T, p *Postgres) {
	t.Helper()
	for sql, want := range map[string]string{
		`SELECT current_user || ' ' || current_database()`:                                   "meterplex meterplex",
		`SELECT rolsuper || ' ' || rolcreaterole FROM pg_roles WHERE rolname = current_user`: "false true",
		`SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()`: "meterplex",
		`SELECT datcollate || ' ' || pg_encoding_to_char(encoding) FROM pg_database LIMIT 1`: "C UTF8",
		`SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings
			WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'data_checksums')`: "data_checksums=on fsync=on " +
			"full_page_writes=on synchronous_commit=on",
		`SELECT setting FROM pg_settings WHERE name = 'listen_addresses'`: "127.0.0.1",
	} {
		if got := query1[string](t, p.URL(), sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
	if !query1[bool](t, p.AdminURL(), `SELECT rolsuper FROM pg_roles WHERE rolname = current_user`) {
		t.Error("the administrator is not a superuser")
	}
	if dir := query1[string](t, p.AdminURL(), `SHOW unix_socket_directories`); dir != "" {
		t.Errorf("a socket in %s", dir)
	}
	t.Log("wal_compression", query1[string](t, p.URL(), `SHOW wal_compression`))
}

func TestPostgresRestartsAfterKill(t *testing.T) {
	tier.AtSize(t)
	p := startPostgres(t, PostgresConfig{DataDir: openDir(t)})
	url := p.URL()
	exec1(t, url, `CREATE TABLE kept (n int)`)
	for i := range 3 {
		exec1(t, url, `INSERT INTO kept VALUES ($1)`, i)
		killed := p.PID()
		must.OK(t, syscall.Kill(killed, syscall.SIGKILL))
		must.OK(t, p.Restart(t.Context()))
		if p.URL() != url || p.PID() == killed {
			t.Fatalf("address %s, process %d; before %s, %d", p.URL(), p.PID(), url, killed)
		}
		if n := query1[int](t, url, `SELECT count(*) FROM kept`); n != i+1 {
			t.Fatalf("%d rows after the kill, want %d", n, i+1)
		}
	}
	must.OK(t, p.Restart(t.Context()))
	p.Halt(t.Context())
	childtest.AwaitExit(t, p.PID())
	must.OK(t, p.Restart(t.Context()))
	if n := query1[int](t, url, `SELECT count(*) FROM kept`); n != 3 {
		t.Errorf("%d rows after Halt and Restart, want 3", n)
	}
	must.OK(t, p.Stop(t.Context()))
	childtest.ErrorContains(t, p.Restart(t.Context()), "stopped permanently")
}

func TestPostgresRefusesSettingsThatLoseCommits(t *testing.T) {
	for name, value := range map[string]string{
		"fsync": "off", "FSYNC": "false", "full_page_writes": "off", "synchronous_commit": "local", "port": "1",
	} {
		_, err := StartPostgres(t.Context(), PostgresConfig{DataDir: t.TempDir(), Settings: map[string]string{name: value}})
		childtest.ErrorContains(t, err, name)
	}
}

func TestPostgresErrorHasItsLog(t *testing.T) {
	_, err := StartPostgres(t.Context(), PostgresConfig{DataDir: openDir(t), Settings: map[string]string{"no_such_setting": "1"}})
	childtest.ErrorContains(t, err, "start the embedded PostgreSQL", "no_such_setting")
}

func TestSecondProcessIsRefused(t *testing.T) {
	tier.AtSize(t)
	dir := openDir(t)
	r, cmd, stop := startOther(t, "postgres", dir, account.Self())
	if r.Err != "" {
		t.Fatal(r.Err)
	}
	_, err := StartPostgres(t.Context(), PostgresConfig{DataDir: dir})
	if !errors.Is(err, folder.ErrInUse) {
		t.Fatalf("%v, want ErrInUse", err)
	}
	childtest.ErrorContains(t, err, fmt.Sprintf("process %d ", cmd.Process.Pid))
	stop()
	startPostgres(t, PostgresConfig{DataDir: dir})
}

func TestServersEndWithTheirParent(t *testing.T) {
	tier.AtSize(t)
	dir := openDir(t)
	r, cmd, stop := startOther(t, "both", dir, account.Self())
	if r.Err != "" || len(r.PIDs) != 2 {
		t.Fatalf("%+v", r)
	}
	exec1(t, r.URL, `CREATE TABLE kept AS SELECT 42 AS n`)
	must.OK(t, cmd.Process.Kill())
	stop()
	// At once, while the servers are still ending.
	p := startPostgres(t, PostgresConfig{DataDir: dir})
	k, err := localkafka.Start(t.Context(), localkafka.Config{DataDir: dir})
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, k.Stop(context.Background())) })
	if n := query1[int](t, p.URL(), `SELECT n FROM kept`); n != 42 {
		t.Errorf("%d, want 42", n)
	}
	for _, pid := range r.PIDs {
		childtest.AwaitExit(t, pid)
	}
	must.OK(t, k.Stop(t.Context()))
}

// A server that no signal reached when its parent died, as on systems without that signal, must not block
// the next start.
func TestServerOfAnEarlierRunIsStopped(t *testing.T) {
	tier.AtSize(t)
	dir := openDir(t)
	p := startPostgres(t, PostgresConfig{DataDir: dir})
	must.OK(t, p.Stop(t.Context()))
	port, err := child.FreePort()
	must.OK(t, err)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	must.OK(t, err)
	defer null.Close()
	stray := p.command(port, null)
	stray.SysProcAttr = &syscall.SysProcAttr{Credential: p.user.Credential()}
	must.OK(t, stray.Start())
	ended := make(chan error, 1)
	go func() { ended <- stray.Wait() }()
	for !folder.Exists(filepath.Join(p.data(), "postmaster.pid")) {
		select {
		case err := <-ended:
			t.Fatal("the stray server exited during its start: ", err)
		case <-time.After(time.Millisecond):
		}
	}
	var log strings.Builder
	startPostgres(t, PostgresConfig{DataDir: dir, Log: &log})
	<-ended
	if !strings.Contains(log.String(), "earlier run") {
		t.Errorf("log %q", log.String())
	}
}

func TestPostgresAsOrdinaryUser(t *testing.T) {
	tier.AtSize(t)
	asRoot(t)
	user := account.Account{UID: account.Nobody, GID: account.Nobody, Drop: true}
	dir := filepath.Join(openDir(t), "data")
	must.OK(t, os.Mkdir(dir, 0o700))
	must.OK(t, user.Chown(dir))
	r, _, stop := startOther(t, "postgres", dir, user, "HOME=", "XDG_CACHE_HOME=", "METERPLEX_CACHE_DIR=")
	if r.Err != "" || r.UID != account.Nobody {
		t.Fatalf("%+v", r)
	}
	exec1(t, r.URL, `CREATE TABLE kept AS SELECT 42 AS n`)
	if !strings.HasPrefix(r.CacheDir, os.TempDir()) {
		t.Errorf("cache %s", r.CacheDir)
	}
	stop()
	must.OK(t, os.RemoveAll(r.CacheDir))
	// Root keeps the data with their owner. Only the owner may enter the folder.
	p := startPostgres(t, PostgresConfig{DataDir: dir})
	if n := query1[int](t, p.URL(), `SELECT n FROM kept`); n != 42 || p.user.UID != account.Nobody {
		t.Errorf("%d, want 42; as user %d", n, p.user.UID)
	}
	must.OK(t, p.Stop(t.Context()))
	r, _, _ = startOther(t, "postgres", dir, user, "HOME=/root")
	if r.Err != "" {
		t.Error(r.Err)
	}
	must.OK(t, os.RemoveAll(r.CacheDir))
}

func TestPostgresOfRootInAnInaccessibleFolder(t *testing.T) {
	tier.AtSize(t)
	asRoot(t)
	closed := openDir(t)
	must.OK(t, os.Chmod(closed, 0o700))
	dir := filepath.Join(closed, "data")
	var log strings.Builder
	p := startPostgres(t, PostgresConfig{DataDir: dir, Log: &log})
	home := p.Dir()
	t.Cleanup(func() { os.RemoveAll(home) })
	if strings.HasPrefix(home, closed) || !strings.Contains(log.String(), home) {
		t.Errorf("data in %s; log %q", home, log.String())
	}
	exec1(t, p.URL(), `CREATE TABLE kept AS SELECT 42 AS n`)
	must.OK(t, p.Stop(t.Context()))

	// The folder is moved; the data stay with it.
	moved := filepath.Join(closed, "moved")
	must.OK(t, os.Rename(dir, moved))
	p = startPostgres(t, PostgresConfig{DataDir: moved})
	if n := query1[int](t, p.URL(), `SELECT n FROM kept`); n != 42 {
		t.Errorf("%d, want 42", n)
	}
	must.OK(t, exec.Command("cp", "-a", moved, filepath.Join(closed, "copy")).Run())
	_, err := StartPostgres(t.Context(), PostgresConfig{DataDir: filepath.Join(closed, "copy")})
	if !errors.Is(err, folder.ErrInUse) {
		t.Errorf("a copy that points to the same database: %v, want ErrInUse", err)
	}
	must.OK(t, p.Stop(t.Context()))
	must.OK(t, os.RemoveAll(home))
	_, err = StartPostgres(t.Context(), PostgresConfig{DataDir: moved})
	childtest.ErrorContains(t, err, home, "is gone", "DATABASE-IS-ELSEWHERE.txt")
}

func TestPostgresNeedsItsPasswords(t *testing.T) {
	tier.AtSize(t)
	dir := openDir(t)
	p := startPostgres(t, PostgresConfig{DataDir: dir})
	must.OK(t, p.Stop(t.Context()))
	must.OK(t, os.Remove(p.passwordFile()))
	_, err := StartPostgres(t.Context(), PostgresConfig{DataDir: dir})
	childtest.ErrorContains(t, err, "passwords.json is gone")
}

// Each downloadable major version has the pinned version, and works like an installed one.
func TestFetchedPostgres(t *testing.T) {
	tier.AtSize(t)
	for _, r := range releases() {
		t.Run(r.version, func(t *testing.T) {
			if r.sha256[platform()] == "" {
				t.Skipf("PostgreSQL %d is not published for %s", r.major, platform())
			}
			var log strings.Builder
			bin, err := fetchPostgres(t.Context(), r, download.CacheDir(), account.OfServers(), &log)
			must.OK(t, err)
			t.Log(bin, log.String())
			dir := openDir(t)
			p := startPostgres(t, PostgresConfig{DataDir: dir, BinDir: bin})
			if v := query1[string](t, p.URL(), `SHOW server_version`); v+".0" != r.version {
				t.Errorf("version %s, want %s", v, r.version)
			}
			checkSetup(t, p)
			must.OK(t, p.Stop(context.Background()))
			// Without BinDir the data determine the version, whatever Major says.
			p = startPostgres(t, PostgresConfig{DataDir: dir, Major: 33 - r.major})
			if p.bin.major != r.major {
				t.Errorf("data of version %d opened by %d", r.major, p.bin.major)
			}
		})
	}
}

func TestReleasesAreOfTheirMajorVersion(t *testing.T) {
	all := releases()
	if all[0].major != oldestPostgres {
		t.Errorf("the oldest is %d, not %d", all[0].major, oldestPostgres)
	}
	for i, r := range all {
		if number(r.version) != r.major || r.major != oldestPostgres+i {
			t.Errorf("%s has major %d at index %d", r.version, r.major, i)
		}
	}
	newest, err := releaseOf(0, "linux-amd64")
	if err != nil || newest.version != all[len(all)-1].version {
		t.Errorf("the newest is %s, %v", newest.version, err)
	}
	for _, major := range []int{14, 99} {
		_, err := releaseOf(major, "linux-amd64")
		if !errors.Is(err, ErrNotPublished) {
			t.Errorf("%d: %v", major, err)
		}
		childtest.ErrorContains(t, err, fmt.Sprintf("PostgreSQL %d for linux-amd64: install it", major))
	}
	if _, err := releaseOf(18, "plan9-386"); !errors.Is(err, ErrNotPublished) {
		t.Errorf("another platform: %v", err)
	}
}
