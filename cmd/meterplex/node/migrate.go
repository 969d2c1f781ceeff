package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Migrate migrates the database and returns the number of applied migrations. Without a
// configured database it starts the embedded one, and stops it again.
func Migrate(ctx context.Context, cfg config.Config, logger *slog.Logger) (int, error) {
	servers := &Servers{Logger: logger}
	defer servers.Stop()
	if cfg.DatabaseMigrateURL == "" {
		var err error
		if cfg, err = servers.startDatabase(ctx, cfg); err != nil {
			return 0, err
		}
	}
	p := newPreparation(cfg)
	defer p.close()
	n, err := p.migrate(ctx, logger)
	return n, servers.ofDatabase(err)
}

// migrate brings the schema up to date, including the pipe's tables if PostgreSQL is
// the pipe, and grants the service's logins access to it.
func (p *preparation) migrate(ctx context.Context, logger *slog.Logger) (int, error) {
	cfg := p.cfg
	logins := postgres.Logins{Migrates: cmp.Or(cfg.DatabaseMigrateURL, cfg.DatabaseURL), Works: cfg.DatabaseURL, Session: p.works}
	n, err := postgres.MigrateAs(ctx, logins, logger)
	if err != nil {
		return n, err
	}
	if cfg.DatabaseReadURL != "" {
		reads := postgres.Logins{Migrates: logins.Migrates, Works: cfg.DatabaseReadURL, Session: p.reads}
		if err := postgres.GrantRoles(ctx, reads, logger); err != nil {
			return n, fmt.Errorf("DATABASE_READ_URL: %w", err)
		}
	}
	if cfg.Pipe != config.PipePostgres {
		return n, nil
	}
	db, err := postgres.OwnerDB(logins.Migrates)
	if err != nil {
		return n, err
	}
	defer db.Close()
	return n, pgpipe.Ensure(ctx, pgpipe.Config{DB: db, TopicPrefix: cfg.TopicPrefix})
}
