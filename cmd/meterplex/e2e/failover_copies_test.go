package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// dataIn is where a server that is given a folder keeps its cluster.
func dataIn(dir string) string { return filepath.Join(dir, "postgres", "data") }

// emptyFolders are folders that a base backup copies without their files.
func emptyFolders() []string {
	return []string{"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"}
}

// copyRunning makes a base backup of a running server in another server's folder, as
// pg_basebackup does; the embedded server has no such program. A copy with its WAL is a
// self-contained backup.
func copyRunning(t testing.TB, from *local.Postgres, dir string, withWAL bool) {
	t.Helper()
	ctx, data := t.Context(), filepath.Join(from.Dir(), "data")
	conn, err := pgx.Connect(ctx, from.AdminURL())
	must.OK(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	var label string
	_, err = conn.Exec(ctx, `SELECT pg_backup_start('rehearsal', true)`)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(dataIn(dir)), 0o755), copyTree(data, dataIn(dir), emptyFolders()))
	}
	if err == nil {
		err = conn.QueryRow(ctx, `SELECT labelfile FROM pg_backup_stop(false)`).Scan(&label)
	}
	if err == nil && withWAL {
		err = copyTree(filepath.Join(data, "pg_wal"), filepath.Join(dataIn(dir), "pg_wal"), nil)
	}
	if err == nil {
		err = copyFile(filepath.Join(from.Dir(), "passwords.json"), filepath.Join(dir, "postgres", "passwords.json"))
	}
	must.OK(t, err)
	appendTo(t, filepath.Join(dataIn(dir), "backup_label"), label)
}

// copyTree copies a folder of a running server. Files come and go meanwhile, and pages
// may be torn: recovery from the WAL since the backup's start repairs both.
func copyTree(from, to string, empty []string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(from, path)
		top, _, within := strings.Cut(name, string(filepath.Separator))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case within && slices.Contains(empty, top), name == "postmaster.pid", name == "postmaster.opts":
			return nil
		case d.IsDir():
			return copyDir(path, filepath.Join(to, name))
		}
		return copyFile(path, filepath.Join(to, name))
	})
}

func copyDir(from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return sameOwner(from, to)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return sameOwner(from, to)
}

// sameOwner gives path the owner of as: the server may run as another user than the test.
func sameOwner(as, path string) error {
	info, err := os.Stat(as)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return os.Chown(path, int(owner.Uid), int(owner.Gid))
}

// appendTo adds a text to a file of a server. A missing file is created.
func appendTo(t testing.TB, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close(), sameOwner(filepath.Dir(path), path))
	}
	must.OK(t, err)
}

func fileHolds(t testing.TB, path, text string) bool {
	t.Helper()
	raw, err := os.ReadFile(path)
	must.OK(t, err)
	return bytes.Contains(raw, []byte(text))
}

// volume is a copy of a stopped server's data directory.
type volume struct {
	p    *serverPair
	path string
}

// copyVolume stops the primary, copies its data directory, and starts it again.
func (p *serverPair) copyVolume() *volume {
	p.t.Helper()
	v := &volume{p, filepath.Join(p.dir, "volume")}
	p.primary.Halt(p.t.Context())
	v.copy(filepath.Join(p.primary.Dir(), "data"), v.path)
	return v
}

// copy copies the stopped server's data directory and starts the server.
func (v *volume) copy(from, to string) {
	v.p.t.Helper()
	if err := copyAll(from, to); err != nil {
		v.p.t.Fatal(err)
	}
	if err := v.p.primary.Restart(context.WithoutCancel(v.p.t.Context())); err != nil {
		v.p.t.Fatal(err)
	}
}

// copyAll copies a folder of a stopped server, with owners and modes.
func copyAll(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s to %s: %w\n%s", from, to, err, out)
	}
	return nil
}

// putBack ends the primary and starts it on the copy.
func (v *volume) putBack() {
	v.p.t.Helper()
	v.p.address.set(cuts)
	endAtOnce(v.p.primary)
	data := filepath.Join(v.p.primary.Dir(), "data")
	if err := os.RemoveAll(data); err != nil {
		v.p.t.Fatal(err)
	}
	v.copy(v.path, data)
	v.p.open()
}

// backup is a base backup with its WAL.
type backup struct {
	p   *serverPair
	dir string
}

// takeBackup makes a base backup of the running primary.
func (p *serverPair) takeBackup() *backup {
	p.t.Helper()
	b := &backup{p, p.newDir()}
	copyRunning(p.t, p.primary, b.dir, true)
	return b
}

// restore kills the primary and starts another server in its place from the backup,
// which begins a timeline of its own.
func (b *backup) restore() {
	b.p.t.Helper()
	b.p.killPrimary()
	appendTo(b.p.t, filepath.Join(dataIn(b.dir), "recovery.signal"), "")
	appendTo(b.p.t, filepath.Join(dataIn(b.dir), "postgresql.auto.conf"), "restore_command = 'false'\nrecovery_target = 'immediate'\nrecovery_target_action = 'promote'\n")
	b.p.replace(b.p.start(b.dir))
	b.p.open()
}

// startEmptyServer starts a new server with an empty database. The instances keep their
// login, and so its password.
func (p *serverPair) startEmptyServer() *local.Postgres {
	p.t.Helper()
	dir := p.newDir()
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "postgres"), 0o755),
		copyFile(filepath.Join(p.primary.Dir(), "passwords.json"), filepath.Join(dir, "postgres", "passwords.json")))
	must.OK(p.t, err)
	return p.start(dir)
}

// freshData is a stopped server's data directory with a migrated database. A copy of it costs
// less than initdb and the migrations.
var freshData = sync.OnceValues(func() (string, error) {
	built, err := binary()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(binaryDir(), "server")
	server, err := local.StartPostgres(context.Background(), local.PostgresConfig{DataDir: dir})
	if err != nil {
		return "", err
	}
	migrate := exec.Command(built, "migrate")
	migrate.Env, migrate.SysProcAttr = []string{"DATABASE_URL=" + server.URL(), "METERPLEX_PIPE=kafka", "HOME=" + dir}, childAttributes()
	out, err := migrate.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("migrate: %w\n%s", err, out)
	}
	// Each copy listens on a port of its own.
	return filepath.Join(dir, "postgres"), errors.Join(err, server.Stop(context.Background()), os.Remove(filepath.Join(dir, "postgres", "port")))
})

// freshServer makes the data directory of a server with a migrated database.
func freshServer(t testing.TB, dir string) {
	t.Helper()
	from, err := freshData()
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil {
		err = copyAll(from, filepath.Join(dir, "postgres"))
	}
	must.OK(t, err)
}

// newDeploymentOnOwnServer has a PostgreSQL for this test alone, which it may slow down and kill beside other tests.
func newDeploymentOnOwnServer(t testing.TB) (*deployment, *local.Postgres) {
	t.Helper()
	dir := filepath.Join(localtest.Folder(t), "server")
	freshServer(t, dir)
	server, err := local.StartPostgres(context.WithoutCancel(t.Context()), local.PostgresConfig{DataDir: dir, Settings: map[string]string{"shared_buffers": "64MB", "max_connections": "200"}})
	must.OK(t, err)
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return newDeploymentAt(t, server.URL(), ofDatabase(server)), server
}
