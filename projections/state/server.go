package state

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Server is the state of the database server. A value that the service may not read, or that does not concern the server, is nil.
type Server struct {
	Monitored          bool               // the login is a member of pg_monitor
	WALLimit           float64            // bytes of WAL that the server should not exceed
	ArchivedSeconds    *float64           // since WAL was archived; nil: the server archives no WAL
	KeyExpiresSeconds  *float64           // until the next operator key expires
	WALBytes           *float64           // that the server keeps
	StandbyLagBytes    *float64           // WAL that the standby furthest behind has not replayed; 0 without standbys
	MissingStandbys    *float64           // that a COMMIT waits for and that do not stream
	EpochRaisedSeconds map[string]float64 // since the last epoch, by reason
}

// serverSQL needs no rights. archived is NULL if the server archives no WAL.
const serverSQL = `SELECT pg_has_role(session_user, 'pg_monitor', 'MEMBER'), current_setting('synchronous_standby_names'),
 (SELECT 1048576 * (max_wal + greatest(max_wal, keep, CASE WHEN slots < 0 THEN 4096 ELSE slots END)) FROM (SELECT
   max(setting::float8) FILTER (WHERE name = 'max_wal_size') AS max_wal, max(setting::float8) FILTER (WHERE name = 'wal_keep_size') AS keep,
   max(setting::float8) FILTER (WHERE name = 'max_slot_wal_keep_size') AS slots FROM pg_settings) s),
 (SELECT greatest(extract(epoch FROM clock_timestamp() - coalesce(a.last_archived_time, pg_postmaster_start_time())), 0)::float8
  FROM pg_stat_archiver a WHERE current_setting('archive_mode') <> 'off'),
 (SELECT extract(epoch FROM min(expires_at) - clock_timestamp())::float8 FROM api_keys
  WHERE tenant_id = '00000000-0000-0000-0000-000000000000' AND revoked_at IS NULL AND expires_at > clock_timestamp())`

// becomeMonitorSQL lasts until the end of the transaction. The login is granted pg_monitor, not the role that it works in: that one
// inherits no rights.
const becomeMonitorSQL = `SET LOCAL ROLE pg_monitor`

// monitorSQL needs pg_monitor: without it pg_stat_replication hides its columns.
const monitorSQL = `SELECT (SELECT coalesce(sum(size), 0)::float8 FROM pg_ls_waldir()),
 coalesce(max(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, replay_lsn)),
 0)::float8,
 count(*) FILTER (WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum'))::float8
 FROM pg_stat_replication`

const raisedSQL = `SELECT reason, greatest(extract(epoch FROM clock_timestamp() - max(raised_at)), 0)::float8 FROM log_epochs
	GROUP BY reason`

// ReadServer reads the state of the server. The number of epochs grows with the lives of the server only.
func ReadServer(ctx context.Context, pool *pgxpool.Pool) (s Server, err error) {
	var standbys string
	if err := pool.QueryRow(ctx, serverSQL).Scan(&s.Monitored, &standbys, &s.WALLimit, &s.ArchivedSeconds,
		&s.KeyExpiresSeconds); err != nil {
		return s, err
	}
	if err := s.monitor(ctx, pool, requiredStandbys(standbys)); err != nil {
		return s, fmt.Errorf("WAL and standbys: %w", err)
	}
	rows, err := pool.Query(ctx, raisedSQL)
	if err != nil {
		return s, err
	}
	s.EpochRaisedSeconds = map[string]float64{}
	var reason string
	var since float64
	_, err = pgx.ForEachRow(rows, []any{&reason, &since}, func() error {
		s.EpochRaisedSeconds[reason] = since
		return nil
	})
	return s, err
}

// monitor reads the state that needs pg_monitor.
func (s *Server) monitor(ctx context.Context, pool *pgxpool.Pool, required int) error {
	if !s.Monitored {
		return nil
	}
	var wal, lag, synchronous float64
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, becomeMonitorSQL); err != nil {
			return err
		}
		return tx.QueryRow(ctx, monitorSQL).Scan(&wal, &lag, &synchronous)
	})
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == notAllowed { // a membership without the SET option
		s.Monitored = false
		return nil
	}
	missing := max(0, float64(required)-synchronous)
	s.WALBytes, s.StandbyLagBytes, s.MissingStandbys = &wal, &lag, &missing
	return err
}

const notAllowed = "42501"

// requiredStandbys is the number of standbys that a COMMIT waits for by synchronous_standby_names.
func requiredStandbys(names string) int {
	if names == "" {
		return 0
	}
	if found := regexp.MustCompile(`(?i)^\s*(?:FIRST\s+|ANY\s+)?(\d+)\s*\(`).FindStringSubmatch(names); found != nil {
		n, _ := strconv.Atoi(found[1]) // the server has checked the setting
		return n
	}
	return 1
}
