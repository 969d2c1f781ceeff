package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// passwords are made once and kept beside the cluster, readable by this user
// only.
type passwords struct {
	Superuser string `json:"postgres"`
	Owner     string `json:"meterplex"`
}

func (p *Postgres) passwordFile() string { return filepath.Join(p.dir, "passwords.json") }

// ensureCluster makes the cluster where there is none: aside, then flipped into
// place by a rename, so that a kill leaves none or a whole one.
func (p *Postgres) ensureCluster(ctx context.Context) error {
	made := exists(filepath.Join(p.data(), "PG_VERSION"))
	if err := p.loadPasswords(made); err != nil {
		return err
	}
	if made {
		return nil
	}
	aside := filepath.Join(p.home, "data.new")
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("remove what a broken start left: %w", err)
	}
	if err := os.Mkdir(aside, 0o700); err != nil {
		return fmt.Errorf("make the cluster's directory: %w", err)
	}
	if err := p.who.give(aside); err != nil {
		return err
	}
	if err := p.initdb(ctx, aside); err != nil {
		return err
	}
	if err := os.Rename(aside, p.data()); err != nil {
		return fmt.Errorf("put the new cluster in its place: %w", err)
	}
	return nil
}

func (p *Postgres) initdb(ctx context.Context, dir string) error {
	file := filepath.Join(p.home, "initdb.password")
	if err := writeFile(file, []byte(p.passwords.Superuser+"\n"), 0o600); err != nil {
		return err
	}
	defer os.Remove(file)
	if err := p.who.give(file); err != nil {
		return err
	}
	_, err := runTool(ctx, p.who, dir, serverEnv(dir), p.bin.path("initdb"),
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
	if !missing(err) {
		return fmt.Errorf("read the database's passwords: %w", err)
	}
	if clusterExists {
		return fmt.Errorf("%s is gone, and without it nobody can log in to the database in %s", p.passwordFile(), p.home)
	}
	p.passwords = passwords{Superuser: secret(), Owner: secret()}
	b, err = json.Marshal(p.passwords)
	if err != nil {
		return fmt.Errorf("encode the passwords: %w", err)
	}
	return writeFile(p.passwordFile(), b, 0o600)
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

// lz4 is there only where the server was built with it.
const bestCompressionSQL = `SELECT CASE WHEN 'lz4' = ANY (enumvals) THEN 'lz4' ELSE 'on' END
	FROM pg_settings WHERE name = 'wal_compression'`

const compressLZ4SQL = `ALTER SYSTEM SET wal_compression = 'lz4'`

const compressSQL = `ALTER SYSTEM SET wal_compression = 'on'`

const reloadSQL = `SELECT pg_reload_conf()`

// bootstrap makes the owner role and its database. The database comes last:
// where it exists, all before it was done.
func (p *Postgres) bootstrap(ctx context.Context) (err error) {
	conn, err := p.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var done bool
	if err := conn.QueryRow(ctx, databaseExistsSQL).Scan(&done); err != nil {
		return fmt.Errorf("look for the database: %w", err)
	}
	if done {
		return nil
	}
	if err := createOwner(ctx, conn, p.passwords.Owner); err != nil {
		return fmt.Errorf("make the owner role: %w", err)
	}
	if err := compressWAL(ctx, conn); err != nil {
		return fmt.Errorf("set the WAL's compression: %w", err)
	}
	if _, err := conn.Exec(ctx, createDatabaseSQL); err != nil {
		return fmt.Errorf("make the database: %w", err)
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
