package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// passwords are created once and stored beside the cluster, readable only by this user.
type passwords struct {
	Superuser string `json:"postgres"`
	Owner     string `json:"meterplex"`
}

func (p *Postgres) passwordFile() string { return filepath.Join(p.dir, "passwords.json") }

// ensureCluster creates the cluster if it is missing, under a temporary name, and then renames it, so
// that a kill never leaves a partial cluster.
func (p *Postgres) ensureCluster(ctx context.Context) error {
	created := folder.Exists(filepath.Join(p.data(), "PG_VERSION"))
	if err := p.loadPasswords(created); err != nil {
		return err
	}
	if created {
		return nil
	}
	tmp := filepath.Join(p.home, "data.new")
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("remove the files of a failed start: %w", err)
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return fmt.Errorf("create the cluster's directory: %w", err)
	}
	if err := p.user.Chown(tmp); err != nil {
		return err
	}
	if err := p.initdb(ctx, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, p.data()); err != nil {
		return fmt.Errorf("rename the new cluster: %w", err)
	}
	return nil
}

func (p *Postgres) initdb(ctx context.Context, dir string) error {
	file := filepath.Join(p.home, "initdb.password")
	if err := folder.WriteFile(file, []byte(p.passwords.Superuser+"\n"), 0o600); err != nil {
		return err
	}
	defer os.Remove(file)
	if err := p.user.Chown(file); err != nil {
		return err
	}
	_, err := child.Run(ctx, p.user.Credential(), dir, serverEnv(dir), p.bin.path("initdb"),
		"-D", dir, "--username=postgres", "--pwfile="+file, "--auth=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--data-checksums")
	return err
}

func (p *Postgres) loadPasswords(clusterExists bool) error {
	b, err := os.ReadFile(p.passwordFile())
	if err == nil {
		if err := json.Unmarshal(b, &p.passwords); err != nil {
			return fmt.Errorf("read %s: %w", p.passwordFile(), err)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the database's passwords: %w", err)
	}
	if clusterExists {
		return fmt.Errorf("%s is gone: without it no login to the database in %s is possible", p.passwordFile(), p.home)
	}
	p.passwords = passwords{Superuser: secret(), Owner: secret()}
	b, err = json.Marshal(p.passwords)
	if err != nil {
		return fmt.Errorf("encode the passwords: %w", err)
	}
	return folder.WriteFile(p.passwordFile(), b, 0o600)
}

func secret() string {
	b := make([]byte, 24)
	rand.Read(b)
	return hex.EncodeToString(b)
}

const setPasswordSQL = `SELECT set_config('meterplex.password', $1, false)`

const createOwnerSQL = `DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'meterplex') THEN
		EXECUTE format('CREATE ROLE meterplex LOGIN NOSUPERUSER CREATEROLE PASSWORD %L',
			current_setting('meterplex.password'));
	END IF;
END $$`

const databaseExistsSQL = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'meterplex')`

const createDatabaseSQL = `CREATE DATABASE meterplex OWNER meterplex`

// bestCompressionSQL checks for lz4, which is available only if the server was built with it.
const bestCompressionSQL = `SELECT CASE WHEN 'lz4' = ANY (enumvals) THEN 'lz4' ELSE 'on' END
	FROM pg_settings WHERE name = 'wal_compression'`

const compressLZ4SQL = `ALTER SYSTEM SET wal_compression = 'lz4'`

const compressSQL = `ALTER SYSTEM SET wal_compression = 'on'`

const reloadSQL = `SELECT pg_reload_conf()`

// ownRolesSQL makes the roles that the setting meterplex.roles names, separated by spaces. A membership of 16 and later may lack the SET
// option.
const ownRolesSQL = `DO $$ DECLARE r text; BEGIN
	FOREACH r IN ARRAY string_to_array(current_setting('meterplex.roles'), ' ') LOOP
		IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
			EXECUTE format('CREATE ROLE %I NOLOGIN NOINHERIT', r);
		END IF;
		EXECUTE format('GRANT %I TO meterplex',
		r) || CASE WHEN current_setting('server_version_num')::int >= 160000 THEN ' WITH SET TRUE' ELSE '' END;
	END LOOP;
	ALTER ROLE meterplex NOCREATEROLE;
END $$`

// bootstrap creates the owner role and its database. The database is created after the owner: if it exists, all
// earlier steps are done. The roles of an existing database are completed, too.
func (p *Postgres) bootstrap(ctx context.Context) (err error) {
	conn, err := p.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var done bool
	if err := conn.QueryRow(ctx, databaseExistsSQL).Scan(&done); err != nil {
		return fmt.Errorf("find the database: %w", err)
	}
	if done {
		return p.ownRoles(ctx, conn)
	}
	if err := createOwner(ctx, conn, p.passwords.Owner); err != nil {
		return fmt.Errorf("create the owner role: %w", err)
	}
	if err := compressWAL(ctx, conn); err != nil {
		return fmt.Errorf("set WAL compression: %w", err)
	}
	if _, err := conn.Exec(ctx, createDatabaseSQL); err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	return p.ownRoles(ctx, conn)
}

func (p *Postgres) ownRoles(ctx context.Context, conn *pgx.Conn) error {
	if len(p.cfg.Roles) == 0 {
		return nil
	}
	_, err := conn.Exec(ctx, `SELECT set_config('meterplex.roles', $1, false)`, strings.Join(p.cfg.Roles, " "))
	if err == nil {
		_, err = conn.Exec(ctx, ownRolesSQL)
	}
	if err != nil {
		return fmt.Errorf("create the roles of the service: %w", err)
	}
	return nil
}

func createOwner(ctx context.Context, conn *pgx.Conn, password string) error {
	if _, err := conn.Exec(ctx, setPasswordSQL, password); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, createOwnerSQL)
	return err
}

func compressWAL(ctx context.Context, conn *pgx.Conn) error {
	var best string
	if err := conn.QueryRow(ctx, bestCompressionSQL).Scan(&best); err != nil {
		return err
	}
	set := compressSQL
	if best == "lz4" {
		set = compressLZ4SQL
	}
	if _, err := conn.Exec(ctx, set); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, reloadSQL)
	return err
}
