package verify

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// sessionsSQL must run as the service's login: only that login sees the state and the type of
// its sessions, unless it is a member of pg_read_all_stats, which sees all.
const sessionsSQL = `SELECT pid, application_name, coalesce(state, ''), coalesce(extract(epoch FROM now() - state_change), 0)::float8
 FROM pg_stat_activity WHERE datname = current_database() AND coalesce(backend_type, 'client backend') = 'client backend'
 AND application_name LIKE 'meterplex%'`

var errHidden = errors.New("the state of the sessions is visible only to their own login: use the service's DATABASE_URL, or GRANT " +
	"pg_read_all_stats")

func (v *verifier) sessions(ctx context.Context, _, _ *observation) error {
	var pid int
	var name, state string
	var seconds float64
	var hidden int64
	err := each(ctx, v.login, sessionsSQL, nil, []any{&pid, &name, &state, &seconds}, func() error {
		v.idleSessions.n++
		since := time.Duration(seconds * float64(time.Second))
		switch {
		case state == "":
			hidden++
		case len(state) > 4 && state[:4] == "idle" && state != "idle" && since > v.Idle:
			v.idleSessions.fault("session %d (%.60q) has been idle in a transaction for %s", pid, name, since.Round(time.Second))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("check the sessions: %w", err)
	}
	v.idleSessions.add(hidden, "of another login, whose state is not shown")
	if hidden > 0 && hidden == v.idleSessions.n {
		v.idleSessions.incomplete(errHidden)
	}
	v.idleSessions.done = true
	return nil
}
