package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/internal/must"
)

// killPostmaster kills the server, and starts it on its data.
func killPostmaster(x *torture, d drawnFault) string {
	x.load.awaitMore(1)
	x.w.servers.killPrimary()
	x.sleep(d.hold)
	x.w.servers.recoverPrimary()
	return ""
}

// killSession kills one session of the service: the postmaster ends all others and recovers.
func killSession(x *torture, _ drawnFault) string {
	x.load.awaitMore(1)
	x.w.servers.crashBackend()
	x.w.sql.Reset()
	return ""
}

// losePrimary lets COMMITs wait for a standby that cannot be reached, and must not be answered. Then the primary is killed, and the
// standby promoted.
func losePrimary(then func(x *torture, d drawnFault)) func(*torture, drawnFault) string {
	return func(x *torture, d drawnFault) string {
		x.load.awaitMore(1)
		x.work.doubtful.Add(1)
		defer x.work.doubtful.Add(1)
		x.w.servers.link.set(cuts)
		x.sleep(d.hold)
		then(x, d)
		x.sleep(d.hold)
		x.w.servers.killPrimary()
		x.w.servers.promote(d.seed%2 == 0)
		x.w.sql.Reset()
		x.w.servers.link.set(passes)
		x.w.servers.attach()
		x.w.servers.synchronous(true)
		return ""
	}
}

// unreadSQL counts published usage that the validator has not read.
const unreadSQL = `SELECT count(*) FROM event_log_rows l JOIN relay_cursors r USING (partition)
 JOIN consumer_checkpoints c USING (partition)
WHERE c.consumer = 'meterplex-usage-validator' AND c.joined AND l.topic = 1 AND l.position > c.position AND l.position <= r.position`

// promoteStandbyUnread kills the primary while consumers have unread records and promotes
// the synchronous standby. The next standby is a copy of the new primary under load.
func promoteStandbyUnread(x *torture, d drawnFault) string {
	unread, killed := 0, false
	hold := func() error {
		return x.whileHeld(pgx.ReadCommitted,
			`SELECT FROM consumer_checkpoints WHERE consumer IN ('meterplex-usage-validator', 'meterplex-usage-aggregator')
 ORDER BY consumer, partition FOR UPDATE`, func() {
				// Another fault may keep the broker down for a while: no event is published then.
				becomesTrue(x.w, 5*time.Minute, func(ctx context.Context) bool {
					return x.w.sql.QueryRow(ctx, unreadSQL).Scan(&unread) == nil && unread > 0
				})
				x.w.servers.killPrimary()
				killed = true
			})
	}
	err := hold()
	for n := 0; !killed && err != nil && n < 10; n++ { // a consumer locks its checkpoints in another order
		err = hold()
	}
	if !killed {
		return fmt.Sprint("the checkpoints were not locked: ", err)
	}
	x.sleep(d.hold)
	x.w.servers.promote(d.seed%2 == 0)
	x.w.sql.Reset()
	x.w.servers.attach()
	x.w.servers.synchronous(true)
	if err != nil || unread == 0 {
		return fmt.Sprintf("%d records were unread, %v", unread, err)
	}
	return ""
}

// detachStandby cuts the standby off. No COMMIT is answered until the standby is back.
func detachStandby(x *torture, d drawnFault) string {
	x.w.servers.link.set(cuts)
	waiting := 0
	x.sleep(d.hold)
	becomesTrue(x.w, 30*time.Second, func(ctx context.Context) bool {
		return x.w.sql.QueryRow(ctx,
			`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'`).Scan(&waiting) == nil &&
			waiting > 0
	})
	x.w.servers.link.set(passes)
	x.w.servers.awaitStandby()
	if waiting == 0 {
		return "no COMMIT waited for the standby"
	}
	return ""
}

// endSessions ends sessions of the service, not those of the test.
const endSessions = `SELECT count(pg_terminate_backend(pid)) FROM (
  SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND usename = 'meterplex' ORDER BY random() LIMIT $1) s`

func endAllBackends(x *torture, d drawnFault) string { return x.endBackends(d.hold, time.Second, 1000) }

func endSomeBackends(x *torture, d drawnFault) string {
	return x.endBackends(d.hold, 100*time.Millisecond, 1+int(d.seed%3))
}

func (x *torture) endBackends(hold, every time.Duration, most int) string {
	ended := 0
	for start := time.Now(); time.Since(start) < hold && x.t.Context().Err() == nil; x.sleep(every) {
		n := 0
		if err := x.w.sql.QueryRow(x.t.Context(), endSessions, most).Scan(&n); err != nil {
			return err.Error()
		}
		ended += n
	}
	if ended == 0 {
		return "the service had no session"
	}
	return ""
}

// whileHeld calls while during an open transaction of another session that has executed sql.
func (x *torture) whileHeld(level pgx.TxIsoLevel, sql string, while func()) error {
	tx, err := x.w.sql.BeginTx(x.t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(x.t.Context()))
	if _, err := tx.Exec(x.t.Context(), sql); err != nil {
		return err
	}
	while()
	return nil
}

func holdHeads(x *torture, d drawnFault) string {
	blocked := false
	err := x.whileHeld(pgx.ReadCommitted, `SELECT pg_current_xact_id() FROM log_heads ORDER BY partition FOR UPDATE`, func() {
		until := time.Now().Add(d.hold)
		blocked = becomesTrue(x.w, d.hold+20*time.Second, func(ctx context.Context) bool {
			n := 0
			err := x.w.sql.QueryRow(ctx,
				`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'meterplex'
 AND wait_event_type = 'Lock'`).Scan(&n)
			return err == nil && n > 0
		})
		x.sleep(time.Until(until))
	})
	if !blocked || err != nil {
		return fmt.Sprint("no session waited for the head rows ", err)
	}
	return ""
}

// idleInTransaction holds back a transaction id and a snapshot; events are accepted meanwhile.
func idleInTransaction(x *torture, d drawnFault) string {
	failed := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		failed <- x.whileHeld(pgx.ReadCommitted, `SELECT pg_current_xact_id()`, func() { <-ended })
	}()
	err := x.whileHeld(pgx.RepeatableRead, `SELECT count(*) FROM event_log_rows`, func() {
		x.sleep(d.hold)
		x.load.awaitMore(1)
	})
	close(ended)
	if other := <-failed; err != nil || other != nil {
		return fmt.Sprint(err, other)
	}
	return ""
}

func (x *torture) restartBroker() {
	must.OK(x.t, x.w.brokers().Restart(context.WithoutCancel(x.t.Context())))
}

func killBroker(x *torture, d drawnFault) string {
	x.load.awaitMore(1)
	if err := x.w.brokers().Kill(); err != nil {
		return err.Error()
	}
	x.sleep(d.hold)
	x.restartBroker()
	return ""
}

func stopBroker(x *torture, d drawnFault) string {
	if err := x.w.brokers().Kill(); err != nil {
		return err.Error()
	}
	x.sleep(d.hold)
	x.load.awaitMore(1) // events are accepted without the broker
	x.restartBroker()
	return ""
}

func deleteTopics(x *torture, d drawnFault) string {
	old, err := topicIDs(x.t.Context(), x.w)
	if err != nil || len(old) != len(topics()) {
		return fmt.Sprintf("%d topics, %v", len(old), err)
	}
	c := x.w.kafka()
	defer c.Close()
	if _, err := kadm.NewClient(c).DeleteTopics(x.t.Context(), topicNames(x.w)...); err != nil {
		return err.Error()
	}
	x.sleep(d.hold)
	awaitRecreated(x.w, old)
	x.emptied = true
	return ""
}

// wipeAndRefillBroker restarts the broker empty; the command of the runbook fills it again.
func wipeAndRefillBroker(x *torture, d drawnFault) string {
	old, err := topicIDs(x.t.Context(), x.w)
	if err != nil || len(old) != len(topics()) {
		return fmt.Sprintf("%d topics, %v", len(old), err)
	}
	if err := x.w.brokers().Kill(); err != nil {
		return err.Error()
	}
	for _, k := range x.w.brokers() {
		if err := os.RemoveAll(k.Dir()); err != nil {
			return err.Error()
		}
	}
	x.load.awaitMore(1)
	x.sleep(d.hold)
	x.restartBroker()
	awaitRecreated(x.w, old)
	x.emptied = true
	m := x.members[rand.New(rand.NewPCG(d.seed, 1)).IntN(len(x.members))]
	if done := x.w.cli(m, x.w.operator).replay("rewind", "--since", "168h"); len(done.Partitions) == 0 {
		return "the relay was rewound in no partition"
	}
	x.emptied = false
	return ""
}
