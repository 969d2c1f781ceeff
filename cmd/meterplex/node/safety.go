package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
)

// prepareDatabase migrates the database and checks its safety before and after: before,
// so that it is not changed on an unsafe server or by an unsafe login; after, since roles
// and tables have their final state only then.
func (s *Servers) prepareDatabase(ctx context.Context, cfg config.Config) error {
	p := newPreparation(cfg)
	defer p.close()
	found, err := p.dangers(ctx)
	if err != nil {
		return err
	}
	if err := postgres.Refusal(found, cfg.AllowUnsafe); err != nil {
		return err
	}
	applied, err := p.migrate(ctx, s.Logger)
	if applied > 0 {
		s.Logger.Info("the database's schema was brought up to date", "migrations", applied)
	}
	if err != nil {
		return err
	}
	if found, err = p.dangers(ctx); err != nil {
		return err
	}
	logFound(found, cfg.AllowUnsafe, s.Logger)
	return postgres.Refusal(found, cfg.AllowUnsafe)
}

// preparation makes a database ready for an instance: checks, migrations, and the checks again. They use one session for each login that
// works.
type preparation struct {
	cfg          config.Config
	works, reads *postgres.Session
}

func newPreparation(cfg config.Config) *preparation {
	return &preparation{cfg, &postgres.Session{URL: cfg.DatabaseURL}, &postgres.Session{URL: cfg.DatabaseReadURL}}
}

func (p *preparation) close() {
	p.works.Close()
	p.reads.Close()
}

// ofDatabase adds advice to an error of a configured, not embedded, database.
func (s *Servers) ofDatabase(err error) error {
	if err == nil || s.database != nil {
		return err
	}
	if roles, rights := (*postgres.RolesNotGranted)(nil), (*postgres.MigrationNotAllowed)(nil); errors.As(err, &roles) ||
		errors.As(err, &rights) {
		return err // its text contains the statements to run
	}
	const notAllowed = "42501"
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == notAllowed {
		return fmt.Errorf("%w\nA login lacks a right on the database. The rights that DATABASE_URL, DATABASE_MIGRATE_URL and "+
			"DATABASE_READ_URL need: docs/how-to/database-logins.md", err)
	}
	if pooler := postgres.RefusedByPooler(err); pooler != nil {
		return fmt.Errorf("%w: %w", pooler, err)
	}
	if failed := (*pgconn.ConnectError)(nil); errors.As(err, &failed) {
		return fmt.Errorf("%w\nDATABASE_URL, DATABASE_MIGRATE_URL and DATABASE_READ_URL are its addresses: is that server up, and does "+
			"it accept this login?", err)
	}
	return err
}

// dangers finds the unsafe settings of the database, its login and its replica.
func (p *preparation) dangers(ctx context.Context) ([]postgres.Danger, error) {
	var further []string
	cfg := p.cfg
	if cfg.Pipe == config.PipePostgres {
		further = (&pgpipe.Config{TopicPrefix: cfg.TopicPrefix}).Tables()
	}
	found, err := p.works.FindDangers(ctx, further...)
	if err != nil {
		return nil, err
	}
	if cfg.DatabaseReadURL != "" {
		replica, err := p.reads.FindDangers(ctx)
		if err != nil {
			return nil, fmt.Errorf("DATABASE_READ_URL: %w", err)
		}
		for _, d := range replica { // durability depends only on the primary
			if slices.Contains([]string{"superuser", "bypassrls", "createrole"}, d.Name) && !slices.Contains(found, d) {
				found = append(found, d)
			}
		}
	}
	return found, nil
}

// logFound warns of the dangers despite which the service starts.
func logFound(found []postgres.Danger, allowed []string, logger *slog.Logger) {
	for _, d := range found {
		switch {
		case slices.Contains(allowed, d.Name):
			logger.Warn("unsafe setting allowed by METERPLEX_ALLOW_UNSAFE", "what", d.Name, "found", d.Found, "risk", d.Why)
		case d.Warns:
			logger.Warn("unsafe setting: see docs/reference/unsafe-settings.md", "what", d.Name, "found", d.Found, "risk", d.Why)
		}
	}
}
