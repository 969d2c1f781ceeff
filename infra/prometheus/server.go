package prometheus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// serverGauges report the state of the database server. A gauge whose value the service may not read, or that does not
// concern the server, is NaN, so that the series exists and compares with no threshold.
type serverGauges struct {
	all []prom.Collector

	monitored, walBytes, walLimit, archived, lag, missing, key prom.Gauge
	certificate                                                atomic.Int64 // its end, in nanoseconds; 0 without one
	raised                                                     *prom.GaugeVec
	complete                                                   atomic.Int64 // time of the last complete read, in nanoseconds
	now                                                        func() time.Time
}

func newServerGauges(now func() time.Time) *serverGauges {
	g := &serverGauges{now: now}
	gauge := func(name, help string) prom.Gauge {
		v := prom.NewGauge(prom.GaugeOpts{Name: "meterplex_" + name, Help: help})
		v.Set(math.NaN())
		g.all = append(g.all, v)
		return v
	}
	g.monitored = gauge("database_monitored", "1 if the service's login is a member of pg_monitor, else 0: then wal_bytes, standby_lag_bytes and synchronous_standbys_missing are NaN.")
	g.walBytes = gauge("wal_bytes", "Bytes of WAL that the server keeps.")
	g.walLimit = gauge("wal_limit_bytes", "Bytes of WAL that the server should not exceed: max_wal_size, and the largest of wal_keep_size, max_slot_wal_keep_size (4 GiB if unlimited) and max_wal_size.")
	g.archived = gauge("wal_archived_seconds", "Time since WAL was archived; NaN if archive_mode is off.")
	g.lag = gauge("standby_lag_bytes", "WAL that the standby furthest behind has not replayed; 0 without standbys.")
	g.missing = gauge("synchronous_standbys_missing", "Synchronous standbys that synchronous_standby_names requires and that do not stream.")
	g.key = gauge("operator_key_expires_seconds", "Time until the next operator key expires; NaN if none does.")
	g.raised = prom.NewGaugeVec(prom.GaugeOpts{Name: "meterplex_log_epoch_raised_seconds", Help: "Time since an epoch was raised, by reason; NaN if none was."}, []string{"reason"})
	for _, reason := range eventlog.EpochReasons() {
		g.raised.WithLabelValues(reason).Set(math.NaN())
	}
	g.complete.Store(now().UnixNano())
	g.all = append(g.all, prom.NewGaugeFunc(prom.GaugeOpts{Name: "meterplex_certificate_expires_seconds",
		Help: "Time until this instance's certificate of METERPLEX_HTTP_TLS_CERT expires; NaN without one."}, g.untilCertificateEnds))
	g.all = append(g.all, g.raised, prom.NewGaugeFunc(prom.GaugeOpts{Name: "meterplex_state_age_seconds",
		Help: "Time since this instance read the state of the database, which the other gauges report; since the start if it never could."}, g.age))
	return g
}

// Describe implements prom.Collector.
func (g *serverGauges) Describe(c chan<- *prom.Desc) {
	for _, v := range g.all {
		v.Describe(c)
	}
}

// Collect implements prom.Collector.
func (g *serverGauges) Collect(c chan<- prom.Metric) {
	for _, v := range g.all {
		v.Collect(c)
	}
}

// age is the time since the last complete read.
func (g *serverGauges) age() float64 {
	return max(0, g.now().Sub(time.Unix(0, g.complete.Load())).Seconds())
}

// untilCertificateEnds is NaN without a certificate.
func (g *serverGauges) untilCertificateEnds() float64 {
	end := g.certificate.Load()
	if end == 0 {
		return math.NaN()
	}
	return time.Unix(0, end).Sub(g.now()).Seconds()
}

// CertificateExpires sets the end of the certificate that the instance serves with.
func (m *Metrics) CertificateExpires(at time.Time) { m.server.certificate.Store(at.UnixNano()) }

// stateRead records a complete read.
func (g *serverGauges) stateRead() { g.complete.Store(g.now().UnixNano()) }

// serverSQL needs no rights. archived is NULL if the server archives no WAL.
const serverSQL = `SELECT pg_has_role(session_user, 'pg_monitor', 'MEMBER'), current_setting('synchronous_standby_names'),
 (SELECT 1048576 * (max_wal + greatest(max_wal, keep, CASE WHEN slots < 0 THEN 4096 ELSE slots END)) FROM (SELECT
   max(setting::float8) FILTER (WHERE name = 'max_wal_size') AS max_wal, max(setting::float8) FILTER (WHERE name = 'wal_keep_size') AS keep,
   max(setting::float8) FILTER (WHERE name = 'max_slot_wal_keep_size') AS slots FROM pg_settings) s),
 (SELECT greatest(extract(epoch FROM clock_timestamp() - coalesce(a.last_archived_time, pg_postmaster_start_time())), 0)::float8
  FROM pg_stat_archiver a WHERE current_setting('archive_mode') <> 'off'),
 (SELECT extract(epoch FROM min(expires_at) - clock_timestamp())::float8 FROM api_keys
  WHERE tenant_id = '00000000-0000-0000-0000-000000000000' AND revoked_at IS NULL AND expires_at > clock_timestamp())`

// becomeMonitorSQL lasts until the end of the transaction. The login is granted pg_monitor, not the role that it works in: that one inherits
// no rights.
const becomeMonitorSQL = `SET LOCAL ROLE pg_monitor`

// monitorSQL needs pg_monitor: without it pg_stat_replication hides its columns.
const monitorSQL = `SELECT (SELECT coalesce(sum(size), 0)::float8 FROM pg_ls_waldir()),
 coalesce(max(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, replay_lsn)), 0)::float8,
 count(*) FILTER (WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum'))::float8
 FROM pg_stat_replication`

const raisedSQL = `SELECT reason, greatest(extract(epoch FROM clock_timestamp() - max(raised_at)), 0)::float8 FROM log_epochs GROUP BY reason`

// read reads the state of the server. The number of epochs grows with the lives of the server only.
func (g *serverGauges) read(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	var monitored bool
	var names string
	var limit float64
	var archived, key *float64
	if err := pool.QueryRow(ctx, serverSQL).Scan(&monitored, &names, &limit, &archived, &key); err != nil {
		return fmt.Errorf("reading the state of the server: %w", err)
	}
	g.walLimit.Set(limit)
	g.archived.Set(orNaN(archived))
	g.key.Set(orNaN(key))
	if err := g.readMonitored(ctx, pool, monitored, requiredStandbys(names)); err != nil {
		return fmt.Errorf("reading WAL and standbys: %w", err)
	}
	rows, err := pool.Query(ctx, raisedSQL)
	if err != nil {
		return fmt.Errorf("reading epochs: %w", err)
	}
	var reason string
	var since float64
	if _, err := pgx.ForEachRow(rows, []any{&reason, &since}, func() error {
		g.raised.WithLabelValues(reason).Set(since)
		return nil
	}); err != nil {
		return fmt.Errorf("reading epochs: %w", err)
	}
	return nil
}

// readMonitored reads the state that needs pg_monitor.
func (g *serverGauges) readMonitored(ctx context.Context, pool *pgxpool.Pool, granted bool, required int) error {
	if !granted {
		g.monitored.Set(0)
		for _, v := range []prom.Gauge{g.walBytes, g.lag, g.missing} {
			v.Set(math.NaN())
		}
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
		return g.readMonitored(ctx, pool, false, required)
	}
	if err != nil {
		return err
	}
	g.monitored.Set(1)
	g.walBytes.Set(wal)
	g.lag.Set(lag)
	g.missing.Set(max(0, float64(required)-synchronous))
	return nil
}

const notAllowed = "42501"

func orNaN(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

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
