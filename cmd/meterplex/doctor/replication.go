package doctor

import (
	"context"
	"fmt"
	"time"
)

// canMonitor says if the login sees the state of replication.
func (s *subject) canMonitor(ctx context.Context) (can bool, err error) {
	db, err := s.server()
	if err == nil {
		err = db.QueryRow(ctx, `SELECT pg_has_role(session_user, 'pg_monitor', 'USAGE') OR rolsuper FROM pg_roles
			WHERE rolname = session_user`).Scan(&can)
	}
	return can, err
}

func monitoringRights(ctx context.Context, s *subject) (State, string, error) {
	if can, err := s.canMonitor(ctx); err != nil || !can {
		return Warning, "the login has no pg_monitor", err
	}
	return OK, "the login sees the state of replication", nil
}

func synchronousStandby(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var names string
	var standbys int
	if err := db.QueryRow(ctx, `SELECT current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication
		WHERE sync_state IN ('sync', 'quorum'))`).Scan(&names, &standbys); err != nil {
		return "", "", err
	}
	if names == "" {
		return Warning, "no synchronous standby is set: events that were answered accepted are lost with the primary's disk", nil
	}
	if can, err := s.canMonitor(ctx); err != nil || !can {
		return Unknown, "the login has no pg_monitor", err
	}
	if standbys == 0 {
		return Failure, "synchronous_standby_names is " + names + ", and no synchronous standby is connected: each commit waits", nil
	}
	return OK, fmt.Sprintf("%d synchronous standbys are connected", standbys), nil
}

func walArchive(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var mode string
	var failing, ever bool
	var since float64
	if err := db.QueryRow(ctx, `SELECT current_setting('archive_mode'), coalesce(last_failed_time > last_archived_time,
		last_failed_time IS NOT NULL), last_archived_time IS NOT NULL,
 extract(epoch FROM now() - coalesce(last_archived_time, stats_reset, now()))::float8 FROM pg_stat_archiver`).Scan(&mode, &failing, &ever,
		&since); err != nil {
		return "", "", err
	}
	age := time.Duration(since * float64(time.Second)).Round(time.Second)
	switch {
	case mode == "off":
		return Warning, "archive_mode is off: after a loss of the disk there is only the last base backup", nil
	case failing:
		return Failure, "archive_command fails", nil
	case !ever || age > archiveFailure:
		return Warning, fmt.Sprintf("the last segment was archived %s ago: a server without writes archives no segment, unless "+
			"archive_timeout is set", age), nil
	}
	return OK, fmt.Sprintf("the last segment was archived %s ago", age), nil
}

func slots(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var all, idle, lost int
	var names string
	if err := db.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE NOT active), count(*) FILTER (WHERE wal_status = 'lost'),
		coalesce(string_agg(slot_name, ', ') FILTER (WHERE NOT active), '')
 FROM pg_replication_slots`).Scan(&all, &idle, &lost, &names); err != nil {
		return "", "", err
	}
	switch {
	case lost > 0:
		return Failure, fmt.Sprintf("%d slots have lost the WAL that their readers need", lost), nil
	case idle > 0:
		return Warning, "slots without a reader: " + names, nil
	}
	return OK, fmt.Sprintf("%d slots, each with a reader", all), nil
}

func retainedWAL(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var retained, bound int64
	var unreserved int
	if err := db.QueryRow(ctx, `SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint,
		count(*) FILTER (WHERE wal_status = 'unreserved'),
 (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') FROM pg_replication_slots`).Scan(&retained, &unreserved,
		&bound); err != nil {
		return "", "", err
	}
	if bound > 0 {
		bound <<= 20 // from MiB
	}
	return walState(retained, bound, unreserved)
}

// walState judges the WAL that slots retain, by max_slot_wal_keep_size: -1 is no bound. With 0 slots retain no WAL beyond a checkpoint, so
// that only those matter whose WAL the next one removes.
func walState(retained, bound int64, unreserved int) (State, string, error) {
	limit := bound
	finding := fmt.Sprintf("slots retain %d MiB of WAL; the bound is %d MiB", retained>>20, limit>>20)
	switch {
	case bound == 0 && unreserved > 0:
		return Warning, fmt.Sprintf("max_slot_wal_keep_size is 0: %d slots lose WAL at the next checkpoint that their readers need",
			unreserved), nil
	case bound == 0:
		return OK, "max_slot_wal_keep_size is 0: slots retain no WAL beyond a checkpoint", nil
	case bound < 0:
		limit, finding = slotWAL, fmt.Sprintf("slots retain %d MiB of WAL, without a bound", retained>>20)
	}
	switch {
	case retained > limit:
		return Failure, finding, nil
	case retained > limit/5*4:
		return Warning, finding, nil
	}
	return OK, finding, nil
}
