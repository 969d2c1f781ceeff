package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// upgrade is a deployment that changes from one release to the next, under load.
type upgrade struct {
	*deployment
	front      *loadBalancer
	load       *load
	tenants    []*tenant
	a, b, c, d *instance // a and b are of the old release, c and d of the next
}

// The next release's migration runs under load beside the old release, is killed in its middle
// and run again; both releases serve, relay and consume together; the old one starts on the newer
// database; the next takes over, the old one returns, and ends by itself when the database
// requires the next. Each acknowledged event is counted once.
func TestP2_OldAndNewBinaryTogetherAcrossAMigration(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	if _, err := faulty(); err != nil { // built before the load: under load it takes longer
		t.Fatal(err)
	}
	w := newDeployment(t)
	u := &upgrade{deployment: w, front: &loadBalancer{}}
	u.a, u.b = w.serve(""), w.serve("")
	u.c, u.d = w.prepare("", asNextRelease), w.prepare("", asNextRelease)
	u.c.build, u.d.build = faulty, faulty
	w.catalogue(u.a)
	u.tenants = w.createTenants(u.a, 24)
	u.serveFrom(u.a, u.b)
	u.load = w.startLoad(u.tenants, 1, mix{duplicates: 20, conflicts: 3, rejections: 3, batch: 6, pause: 800 * time.Millisecond},
		u.front.urlOf)
	u.load.awaitMore(200)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"the migration is killed in its middle, waits for a long read, and is killed in an index", u.killMigrations},
		{"two of the next release start at once beside the old one", u.startBoth},
		{"a rebuild by a fold that the old one does not have; the next takes over", u.takeOver},
		{"the old one returns", u.rollBack},
		{"the database requires the next one", u.requireNext},
	} {
		start := time.Now()
		step.do()
		t.Logf("%s: %s, %d acked, %d requests without an answer", step.name, time.Since(start).Round(time.Millisecond), u.load.acked(),
			u.load.lost())
	}
	u.load.stop()
	u.load.checkServed(t)
	w.settle(u.c, u.tenants...)
	w.finish()
}

// serveFrom waits until instances accept the tenants' keys, and sends the load to them.
func (u *upgrade) serveFrom(all ...*instance) {
	u.t.Helper()
	for _, i := range all {
		awaitKeys(u.deployment, i, u.tenants)
	}
	u.front.serve(all...)
}

// longRead is enough time for several tries of a migration behind it.
const longRead = 3 * time.Second

// killMigrations checks that a crash in a transaction leaves no change, and that a half-built
// index is built again. The load continues meanwhile.
func (u *upgrade) killMigrations() {
	u.t.Helper()
	before := migrations(u.deployment)
	setPause(u.deployment, 120)
	killedWhen(u.deployment, startMigration(u.deployment), "the migration is in its middle", `SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'meterplex migrate' AND wait_event = 'PgSleep'`)
	if now := migrations(u.deployment); now != before || !strings.HasSuffix(now, "notes no, index no") {
		u.t.Errorf("killed in the middle, the migration left %q, was %q", now, before)
	}
	setPause(u.deployment, 0)
	// A long transaction has the last table locked, so the migration waits for it with the other
	// tables locked; the index waits for every snapshot that cannot see it yet.
	read, snapshot := holdTransaction(u.deployment, `LOCK TABLE usage_aggregates IN ACCESS SHARE MODE`),
		holdTransaction(u.deployment, `SELECT count(*) FROM tenants`)
	j := startMigration(u.deployment)
	within(u.t, "the migration waits for a lock", func(ctx context.Context) (bool, string) {
		var n int
		err := u.sql.QueryRow(ctx,
			`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'meterplex migrate'
 AND wait_event_type = 'Lock'`).Scan(&n)
		return n > 0, fmt.Sprint(n, " ", err)
	})
	lost := u.load.lost()
	time.Sleep(longRead)
	u.load.awaitMore(100)
	if now := u.load.lost(); now > lost {
		u.t.Errorf("%d requests were refused while the migration waited", now-lost)
	}
	read()
	killedWhen(u.deployment, j, "the index is half built",
		`SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('next_by_time') AND NOT indisvalid`)
	snapshot()
	if now := migrations(u.deployment); now != "9001, notes yes, index half" {
		u.t.Errorf("killed in the index, the migration left %q", now)
	}
	u.load.awaitMore(100)
}

// startBoth checks that one of two instances started at once migrates, and the other waits.
func (u *upgrade) startBoth() {
	u.t.Helper()
	u.front.serve(u.a)
	u.b.stop()
	const waits = "another instance migrates the database"
	snapshot := holdTransaction(u.deployment, `SELECT count(*) FROM tenants`) // the index waits for it, until both have started
	errs := make([]error, 2)
	var both sync.WaitGroup
	for n, i := range []*instance{u.c, u.d} {
		both.Go(func() { errs[n] = i.tryStart() })
	}
	within(u.t, "one of the two waits for the other", func(context.Context) (bool, string) {
		return u.c.logContains(waits) || u.d.logContains(waits), u.c.lastLines(3) + u.d.lastLines(3)
	})
	snapshot()
	both.Wait()
	for _, err := range errs {
		must.OK(u.t, err)
	}
	for _, seen := range []string{"the database's schema was brought up to date", waits} {
		if u.c.logContains(seen) == u.d.logContains(seen) {
			u.t.Errorf("of two started at once, both or none logged %q", seen)
		}
	}
	if now := migrations(u.deployment); now != "9002, notes yes, index yes" {
		u.t.Errorf("after the migration, the state is %q", now)
	}
	u.serveFrom(u.a, u.c, u.d)
	awaitShares(u.deployment, u.a, u.c, u.d)
	u.front.serve(u.a, u.c)
	u.d.stop()
	u.b.start()
	if !u.b.logContains("was migrated by a later release, beside which this one may work") {
		u.t.Errorf("the old release does not report that the database is newer:\n%s", u.b.lastLines(10))
	}
	u.serveFrom(u.a, u.b, u.c)
	awaitShares(u.deployment, u.a, u.b, u.c)
}

// notHeld is the old release's error for the next one's fold.
const notHeld = "which this binary does not hold"

// takeOver checks that a rebuild the old release cannot fold waits until that release has stopped.
func (u *upgrade) takeOver() {
	u.t.Helper()
	r := startRebuild(u.deployment, u.c, "usage_aggregates")
	within(u.t, "the old release meets the next one's fold", func(context.Context) (bool, string) {
		state := fmt.Sprintf("%+v", rebuildOf(u.deployment, u.c, r.ID))
		return u.a.logContains(notHeld) || u.b.logContains(notHeld), state
	})
	u.load.awaitMore(100)
	u.front.serve(u.c)
	u.a.stop()
	u.b.stop()
	u.d.start()
	u.serveFrom(u.c, u.d)
	awaitShares(u.deployment, u.c, u.d)
	awaitReady(u.deployment, u.c, r.ID)
	checkSameUsage(u.deployment, 1, r.Generation)
	if err := u.a.tryStart(); err == nil || !strings.Contains(err.Error(), notHeld) {
		u.t.Errorf("the old release started beside a fold that it does not have: %v", err)
	}
	u.ask(u.operator, http.MethodPost, u.c, "/api/v1/rebuilds/"+r.ID+"/abandon", object{"reason": "back to the old release"}, nil,
		http.StatusAccepted)
}

// rollBack checks that a release that only added can be rolled back.
func (u *upgrade) rollBack() {
	u.t.Helper()
	within(u.t, "the old release starts again", func(context.Context) (bool, string) {
		err := u.a.tryStart()
		return err == nil, fmt.Sprint(err)
	})
	u.serveFrom(u.a)
	u.c.stop()
	u.d.stop()
	u.b.start()
	u.serveFrom(u.a, u.b)
	awaitShares(u.deployment, u.a, u.b)
}

// requireNext checks that a migration older binaries cannot work with ends the old release and
// keeps it from starting; its error states the reason and the remedy.
func (u *upgrade) requireNext() {
	u.t.Helper()
	u.c.start()
	u.serveFrom(u.c)
	if _, err := u.sql.Exec(u.t.Context(), `INSERT INTO required_migrations VALUES (9002, 'they would lose what is next')`); err != nil {
		u.t.Fatal(err)
	}
	for _, i := range []*instance{u.a, u.b} {
		within(u.t, "the old release ends by itself", func(context.Context) (bool, string) {
			_, died := i.exitedByItself()
			return died, i.lastLines(3)
		})
		if code := i.end(syscall.SIGTERM); code != 2 ||
			!i.logContains("migration 9002 is not for those that do not know it (they would lose what is next)") {
			u.t.Errorf("%s ended with %d:\n%s", i.name, code, i.lastLines(5))
		}
		if err := i.tryStart(); err == nil || !strings.Contains(err.Error(), "Start the release that migrated the database") {
			u.t.Errorf("the old release started on a database that requires the next: %v", err)
		}
	}
	u.load.awaitMore(100)
	awaitShares(u.deployment, u.c)
}

// checkServed checks that nearly every request was answered in time.
func (l *load) checkServed(t *testing.T) {
	t.Helper()
	took := l.latencies(time.Time{}, time.Now())
	t.Logf("%d requests, p50 %s, p99 %s, the longest %s; %d without an answer", len(took),
		took[len(took)/2], took[len(took)*99/100], took[len(took)-1], l.lost())
	if l.lost()*50 > len(took) {
		t.Errorf("%d requests had no answer, %d had one", l.lost(), len(took))
	}
	if longest := took[len(took)-1]; longest > 10*time.Second {
		t.Errorf("a request took %s", longest)
	}
}
