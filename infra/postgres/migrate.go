package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/meterplex/meterplex/migrations"
)

// A migration that does not get a lock soon gives up: later sessions queue behind its
// request, and the service refuses requests that waited for 2 s. The migration is
// retried for some minutes, with pauses for those sessions. So is a migration that the
// server ended in a deadlock with them.
const (
	migrationTries = 120
	migrationPause = time.Second
	// migrationTurn is how often an instance looks whether another has migrated.
	migrationTurn = 250 * time.Millisecond
)

// Migrate is MigrateAs for one login that migrates and works.
func Migrate(ctx context.Context, url string) (int, error) {
	return MigrateAs(ctx, Logins{Migrates: url, Works: url}, slog.Default())
}

// MigrateAs brings the schema up to date as one login, lets the other one work on it,
// and returns the number of migrations that it applied. Instances that start together
// wait for each other, and log that.
func MigrateAs(ctx context.Context, logins Logins, logger *slog.Logger) (int, error) {
	n, err := migrateAs(ctx, logins, logger)
	if err != nil || logins.Works == "" {
		return n, err
	}
	return n, GrantRoles(ctx, logins, logger)
}

func migrateAs(ctx context.Context, logins Logins, logger *slog.Logger) (int, error) {
	db, err := migrationDB(logins.Migrates)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	if err := mayMigrate(ctx, db.DB, logins); err != nil {
		return 0, err
	}
	n, err := migrate(ctx, db, migrations.FS, logger, migrationTries)
	if err != nil {
		return n, explainDenied(ctx, db.DB, logins, err)
	}
	return n, nil
}

func migrate(ctx context.Context, db *migrationSessions, files fs.FS, logger *slog.Logger, tries int) (int, error) {
	provider, err := goose.NewProvider(goose.DialectPostgres, db.DB, markedFiles{files}, goose.WithSessionLocker(turn{logger}))
	if err != nil {
		return 0, fmt.Errorf("reading the migrations: %w", err)
	}
	for applied, try := 0, 1; ; try++ {
		db.waitInTry(ctx, try)
		results, err := provider.Up(ctx)
		applied += len(results)
		if part := (*goose.PartialError)(nil); errors.As(err, &part) {
			applied += len(part.Applied)
		}
		if err == nil {
			return applied, runsOn(ctx, db.DB, provider, files, logger)
		}
		if !slices.Contains([]string{LockNotAvailable, deadlock}, SQLState(err)) || try >= tries {
			return applied, fmt.Errorf("migrating the database: %w", err)
		}
		logger.Warn("a migration waits for sessions that use its tables; it will try again", "tries", tries-try, "error", err)
		select {
		case <-ctx.Done():
			return applied, fmt.Errorf("migrating the database: %w", ctx.Err())
		case <-time.After(migrationPause):
		}
	}
}

// turn lets one instance migrate at a time, by goose's own lock, which all releases
// take. A waiting instance logs that, and waits until its context ends.
type turn struct{ logger *slog.Logger }

func (t turn) SessionLock(ctx context.Context, conn *sql.Conn) error {
	for waits := false; ; waits = true {
		var had bool
		if err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock($1)`, lock.DefaultLockID).Scan(&had); err != nil {
			return fmt.Errorf("asking for the turn to migrate: %w", err)
		}
		if had {
			return nil
		}
		if !waits {
			t.logger.Info("another instance migrates the database; this one waits for it")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another instance still migrates the database: %w", ctx.Err())
		case <-time.After(migrationTurn):
		}
	}
}

func (turn) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, `SELECT pg_advisory_unlock($1)`, lock.DefaultLockID)
	return err
}

// Beyond is the error of a binary that is too old for the database.
type Beyond struct {
	Holds   int64  // the newest migration that the binary knows
	Needs   int64  // the one that it would have to know
	Because string // the fault of an older binary
}

func (b *Beyond) Error() string {
	return fmt.Sprintf("this release is too old for the database: it knows migrations up to %d, and migration %d is not for those that "+
		"do not know it (%s). "+
		"Start the release that migrated the database, or a later one; if that is impossible, what to restore: docs/how-to/upgrade.md",
		b.Holds, b.Needs, b.Because)
}

// requiredSQL asks for the newest migration that a binary has to know.
const requiredSQL = `SELECT migration, because FROM required_migrations WHERE migration > $1 ORDER BY migration DESC LIMIT 1`

// DefaultRequiredEvery is how often WatchRequired looks.
const DefaultRequiredEvery = 5 * time.Second

// WatchRequired returns a *Beyond if a later release migrates the database beyond this
// binary while it runs: continuing would be wrong. Otherwise it returns when ctx ends.
// If the database does not answer, it looks again.
func WatchRequired(ctx context.Context, pool *pgxpool.Pool, every time.Duration) error {
	holds, err := newest(migrations.FS)
	if err != nil {
		return err
	}
	beyond := &Beyond{Holds: holds}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := pool.QueryRow(ctx, requiredSQL, beyond.Holds).Scan(&beyond.Needs, &beyond.Because); err == nil {
			return beyond
		}
	}
}

// newest returns the number of the last migration.
func newest(files fs.FS) (last int64, err error) {
	names, err := fs.Glob(files, "*.sql")
	for _, name := range names {
		n, wrong := goose.NumericComponent(name)
		last, err = max(last, n), errors.Join(err, wrong)
	}
	if err != nil {
		return 0, fmt.Errorf("reading the migrations: %w", err)
	}
	return last, nil
}

// runsOn checks that the binary may work on a database that a later release may have
// migrated further.
func runsOn(ctx context.Context, db *sql.DB, provider *goose.Provider, files fs.FS, logger *slog.Logger) error {
	holds, err := newest(files)
	if err != nil {
		return err
	}
	beyond := &Beyond{Holds: holds}
	now, err := provider.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("asking which migrations the database has: %w", err)
	}
	if now <= beyond.Holds {
		return nil
	}
	switch err := db.QueryRowContext(ctx, requiredSQL, beyond.Holds).Scan(&beyond.Needs, &beyond.Because); {
	case err == nil:
		return beyond
	case !errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("asking who may work on the database: %w", err)
	}
	logger.Warn("the database was migrated by a later release, beside which this one may work: docs/how-to/upgrade.md",
		"database", now, "binary", beyond.Holds)
	return nil
}

// SchemaVersion returns the last migration of a database, and the last one that this binary knows.
func SchemaVersion(ctx context.Context, on Pool) (has, knows int64, err error) {
	if knows, err = newest(migrations.FS); err != nil {
		return 0, 0, err
	}
	if err := on.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&has); err != nil {
		return 0, 0, fmt.Errorf("reading the last migration of the database: %w", err)
	}
	return has, knows, nil
}
