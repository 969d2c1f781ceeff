package store

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Instances reports this instance, so that all instances list it.
type Instances struct {
	Pool    postgres.Pool
	ID      string
	Version string
	Roles   []string
	Logger  *slog.Logger

	Every time.Duration // interval of reports (5 s)
}

const (
	defaultReportEvery = 5 * time.Second
	// reportTime bounds a report. The last one delays the end of the instance.
	reportTime = 2 * time.Second
	// oldInstancesEach is the number of reports per deletion of rows that are older than a day.
	oldInstancesEach = 720
)

// All times are of the clock of the database.
const (
	reportSQL = `INSERT INTO instances AS i (id, version, roles, started_at, seen_at) VALUES ($1, $2, $3, clock_timestamp(),
		clock_timestamp())
 ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, ended_at = NULL`
	endSQL          = `UPDATE instances SET seen_at = clock_timestamp(), ended_at = clock_timestamp() WHERE id = $1`
	oldInstancesSQL = `DELETE FROM instances WHERE seen_at < clock_timestamp() - interval '1 day'`
	// An instance that did not report for 30 s is lost: several reports failed.
	instancesSQL = `SELECT id, version, roles, started_at, seen_at, ended_at,
  CASE WHEN ended_at IS NOT NULL THEN 'ENDED' WHEN seen_at < clock_timestamp() - interval '30 seconds' THEN 'LOST' ELSE 'RUNNING' END AS state
 FROM instances WHERE seen_at >= clock_timestamp() - interval '1 day' AND id > $1 ORDER BY id LIMIT $2`
)

// Run reports until ctx ends, then writes the end. While the database does not answer it goes on.
func (i *Instances) Run(ctx context.Context) error {
	reports := 0
	reporting := loop.Loop{Every: cmp.Or(i.Every, defaultReportEvery), Logger: i.Logger, Failed: "cannot report this instance; will retry"}
	_ = reporting.Run(ctx, func(ctx context.Context) error {
		err := i.exec(ctx, reportSQL, i.ID, i.Version, i.Roles)
		if err == nil && reports%oldInstancesEach == 0 {
			err = i.exec(ctx, oldInstancesSQL)
		}
		reports++
		return err
	}) // never fails
	if err := i.exec(context.WithoutCancel(ctx), endSQL, i.ID); err != nil {
		i.Logger.WarnContext(ctx, "cannot write the end of this instance: it is listed as lost", "error", err)
	}
	return nil
}

func (i *Instances) exec(ctx context.Context, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	if _, err := i.Pool.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("reporting an instance: %w", err)
	}
	return nil
}

// Instances implements catalogue.Reader.
func (c *Catalogue) Instances(ctx context.Context, p commands.Page) ([]commands.Instance, error) {
	return List(ctx, c, pgx.RowToStructByName[commands.Instance], instancesSQL, p.After, p.Limit)
}
