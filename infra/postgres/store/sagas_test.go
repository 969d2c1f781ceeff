package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/internal/logtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// sagaFixture has the kind "test" with the steps first, second and last. Each step inserts a row of effects under the saga's key.
type sagaFixture struct {
	*testing.T
	store *Store
	pool  *pgxpool.Pool
	// before, if set, runs before the effect of a step.
	before func(ctx context.Context, s *domain.Saga) (result domain.SagaResult, decided bool, err error)
}

func newSagaFixture(t *testing.T) *sagaFixture {
	s, _, pool, url := openStore(t)
	f := &sagaFixture{T: t, store: s, pool: pool}
	owner, err := pgx.Connect(t.Context(), url)
	must.OK(f, err)
	defer owner.Close(context.Background())
	must.Exec(f, owner, `CREATE TABLE effects (key text PRIMARY KEY, runs int NOT NULL); GRANT ALL ON effects TO meterplex_worker`)
	return f
}

func (f *sagaFixture) kind() commands.SagaKind {
	steps := []string{"first", "second", "last"}
	return commands.SagaKind{Name: "test", Steps: steps, Despite: []string{"letters"},
		Run: func(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
			if f.before != nil {
				if result, decided, err := f.before(ctx, s); decided || err != nil {
					return result, err
				}
			}
			if _, err := f.pool.Exec(ctx, `INSERT INTO effects VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET runs = effects.runs + 1`,
				s.Key+"/"+s.Step); err != nil {
				return domain.SagaResult{}, err
			}
			if at := slices.Index(steps, s.Step); at < len(steps)-1 {
				return domain.SagaNext(steps[at+1]), nil
			}
			return domain.SagaDone(), nil
		}}
}

// run runs a runner on a store until the returned function is called, which waits for its end.
func (f *sagaFixture) run(s *Store, change ...func(*commands.SagaRunner)) (stop func()) {
	r := &commands.SagaRunner{Queue: &Sagas{Store: s}, Kinds: []commands.SagaKind{f.kind()}, NewID: newID, Every: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(r)
	}
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	f.Cleanup(stop)
	return stop
}

// start starts a saga in a change of its own.
func (f *sagaFixture) start(key string, deadline time.Duration) (saga *domain.Saga, started bool) {
	f.Helper()
	must.OK(f, f.store.ChangeTenant(f.Context(), uuid.Nil, func(tx *Tx) (err error) {
		saga, started, err = tx.StartSaga(domain.SagaStart{ID: newID(), Kind: "test", Key: key, FirstStep: "first", Deadline: deadline})
		return err
	}))
	return saga, started
}

func (f *sagaFixture) saga(id uuid.UUID) *domain.Saga {
	f.Helper()
	s, err := (&Catalogue{Pool: f.pool}).Saga(context.Background(), id)
	must.OK(f, err)
	return s
}

// until waits until a saga is as described.
func (f *sagaFixture) until(id uuid.UUID, is func(*domain.Saga) bool) *domain.Saga {
	f.Helper()
	for {
		if s := f.saga(id); is(s) {
			return s
		}
		select {
		case <-f.Context().Done():
			f.Fatal("the test ends")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func ended(s *domain.Saga) bool { return !s.Open() }

func TestAStepHasItsEffectOnceWithTwoRunners(t *testing.T) {
	f := newSagaFixture(t)
	var mu sync.Mutex
	running, twice := map[uuid.UUID]bool{}, 0
	f.before = func(_ context.Context, s *domain.Saga) (domain.SagaResult, bool, error) {
		mu.Lock()
		if running[s.ID] {
			twice++
		}
		running[s.ID] = true
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		running[s.ID] = false
		mu.Unlock()
		return domain.SagaResult{}, false, nil
	}
	var mine []uuid.UUID
	for i := range 20 {
		s, started := f.start(fmt.Sprint(i), 0)
		again, restarted := f.start(fmt.Sprint(i), time.Hour)
		if !started || restarted || again.ID != s.ID || again.DeadlineAt != nil {
			t.Errorf("the saga %s was started %t, then %+v %t", s.ID, started, again, restarted)
		}
		mine = append(mine, s.ID)
	}
	var outcomes sync.Map
	for range 2 {
		f.run(f.store, func(r *commands.SagaRunner) {
			r.Ended = func(kind, outcome string) { outcomes.Store(kind+" "+outcome, true) }
		})
	}
	for _, id := range mine {
		if s := f.until(id, ended); s.State != domain.SagaCompleted || s.Outcome != domain.SagaSuccess || s.Step != "last" {
			t.Errorf("the saga ended as %+v", s)
		}
	}
	if n := count(t, f.pool, `SELECT count(*) FROM effects WHERE runs = 1`); n != 60 ||
		count(t, f.pool, `SELECT count(*) FROM effects`) != 60 || twice > 0 {
		t.Errorf("%d of 60 steps ran once; %d ran twice at the same time", n, twice)
	}
	if _, told := outcomes.Load("test success"); !told {
		t.Error("no end was reported")
	}
}

// A runner that was killed renews its lease no longer, and cannot save the result of its step.
func TestASagaOfAKilledRunnerContinuesElsewhere(t *testing.T) {
	f := newSagaFixture(t)
	s, _ := f.start("k", 0)
	queue, killed := &Sagas{Store: f.store}, newID()
	leased, err := queue.LeaseSaga(t.Context(), []string{"test/first"}, killed, 300*time.Millisecond)
	if err != nil || leased == nil || leased.ID != s.ID {
		t.Fatalf("%+v, %v", leased, err)
	}
	if wait, found, err := queue.NextSaga(t.Context(), []string{"test/first"}); err != nil || !found || wait > 300*time.Millisecond {
		t.Errorf("a leased saga is due in %s, %t, %v", wait, found, err)
	}
	f.run(f.store)
	if s := f.until(s.ID, ended); s.Outcome != domain.SagaSuccess {
		t.Errorf("the saga ended as %+v", s)
	}
	if held, err := queue.RenewSaga(t.Context(), s.ID, killed, time.Hour); err != nil || held {
		t.Errorf("the old lease is held: %t, %v", held, err)
	}
	late, err := queue.SettleSaga(t.Context(), s.ID, killed, func(*domain.Saga, time.Time) { t.Error("the old lease changes the saga") })
	if err != nil || late != nil {
		t.Errorf("%+v, %v", late, err)
	}
}

// A runner whose connections end loses its lease while its step runs. Its step ends, and another instance repeats it.
func TestARunnerWithoutTheDatabaseStopsItsStep(t *testing.T) {
	f := newSagaFixture(t)
	var once sync.Once
	began, over := make(chan struct{}), make(chan error, 1)
	f.before = func(ctx context.Context, s *domain.Saga) (result domain.SagaResult, decided bool, err error) {
		once.Do(func() {
			decided = true
			close(began)
			<-ctx.Done()
			over <- context.Cause(ctx)
		})
		return domain.SagaResult{Step: "second"}, decided, nil
	}
	_, cut := logtest.Open(t, f.pool.Config().ConnString())
	first := New(cut, f.store.log, Config{})
	s, _ := f.start("k", 0)
	stop := f.run(first, func(r *commands.SagaRunner) { r.Lease = 600 * time.Millisecond })
	<-began
	cut.Close() // its instance reaches no database any more
	if err := <-over; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the step ended by %v", err)
	}
	stop()
	f.run(f.store)
	f.until(s.ID, ended)
	if n := count(t, f.pool, `SELECT count(*) FROM effects WHERE runs = 1`); n != 3 {
		t.Errorf("%d of 3 steps had their effect once", n)
	}
}

func TestALongStepKeepsItsLease(t *testing.T) {
	tier.AtSize(t)
	f := newSagaFixture(t)
	release, runs := make(chan struct{}), make(chan string, 100)
	f.before = func(ctx context.Context, s *domain.Saga) (domain.SagaResult, bool, error) {
		runs <- s.Step
		if s.Step == "first" {
			<-release
		}
		return domain.SagaResult{}, false, ctx.Err()
	}
	s, _ := f.start("k", 0)
	short := func(r *commands.SagaRunner) { r.Lease = 6 * time.Second }
	f.run(f.store, short)
	f.run(f.store, short)
	<-runs
	first := f.saga(s.ID).NextAt
	f.until(s.ID, func(s *domain.Saga) bool { return s.NextAt.After(first.Add(6 * time.Second)) }) // renewed beyond its first end
	if len(runs) != 0 {
		t.Error("the step ran twice")
	}
	close(release)
	f.until(s.ID, ended)
}

func TestUnknownKindsAndStepsWait(t *testing.T) {
	f := newSagaFixture(t)
	for _, of := range [][2]string{{"newer", "first"}, {"test", "newer"}} {
		_, err := f.pool.Exec(t.Context(), `INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, deadline_at, created_at)
 VALUES ($1, $2, $3, 'k', $4, 'RUNNING', now() - interval '1 hour', now() - interval '1 minute', now())`, newID(), of[0], newID(), of[1])
		must.OK(f, err)
	}
	f.run(f.store)
	s, _ := f.start("k", 0)
	f.until(s.ID, ended)
	if n := count(t, f.pool, `SELECT count(*) FROM sagas WHERE ended_at IS NULL AND lease IS NULL AND state = 'RUNNING'
		AND next_at < now() - interval '59 minutes'`); n != 2 {
		t.Errorf("%d of 2 sagas of a newer release were left alone", n)
	}
}

func TestASagaIsPartialAfterItsDeadlineAndContinues(t *testing.T) {
	f := newSagaFixture(t)
	f.before = func(_ context.Context, s *domain.Saga) (domain.SagaResult, bool, error) {
		if slices.Contains(s.Despite, "letters") {
			return domain.SagaResult{}, false, nil
		}
		return domain.SagaWait(time.Hour, "letters"), true, nil
	}
	s, _ := f.start("k", 300*time.Millisecond)
	sagas := &commands.Sagas{Store: &Sagas{Store: f.store}, Kinds: []commands.SagaKind{f.kind()}, Logger: slog.New(slog.DiscardHandler)}
	f.run(f.store)
	if s := f.until(s.ID, func(s *domain.Saga) bool { return s.State != domain.SagaRunning }); s.State != domain.SagaPartial ||
		!slices.Equal(s.Missing, []string{"letters"}) || !s.Open() {
		t.Errorf("after the deadline it is %+v", s)
	}
	refusal := (*domain.Error)(nil)
	if _, err := sagas.Retry(t.Context(), commands.Request{}, s.ID, "because", []string{"others"}); !errors.As(err, &refusal) ||
		refusal.Code != "despite_invalid" {
		t.Errorf("%v", err)
	}
	if _, err := sagas.Retry(t.Context(), commands.Request{}, s.ID, "because", []string{"letters"}); err != nil {
		t.Fatal(err)
	}
	done := f.until(s.ID, ended)
	if done.Outcome != domain.SagaSuccess || done.State != domain.SagaCompleted || done.LastReason != "because" || done.Retries != 1 ||
		len(done.Missing) > 0 {
		t.Errorf("it ended as %+v", done)
	}
	if _, err := sagas.Retry(t.Context(), commands.Request{}, s.ID, "again", nil); !errors.As(err, &refusal) ||
		refusal.Code != "saga_ended" {
		t.Errorf("%v", err)
	}
}

// The step that runs during a retry does not see the conditions that the operator waived.
func TestARetryDuringAStepIsFollowedByAnotherRun(t *testing.T) {
	f := newSagaFixture(t)
	began, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.before = func(_ context.Context, s *domain.Saga) (domain.SagaResult, bool, error) {
		once.Do(func() { close(began); <-release })
		if slices.Contains(s.Despite, "letters") {
			return domain.SagaResult{}, false, nil
		}
		return domain.SagaWait(time.Hour, "letters"), true, nil
	}
	s, _ := f.start("k", 0)
	f.run(f.store)
	<-began
	sagas := &commands.Sagas{Store: &Sagas{Store: f.store}, Kinds: []commands.SagaKind{f.kind()}, Logger: slog.New(slog.DiscardHandler)}
	if _, err := sagas.Retry(t.Context(), commands.Request{}, s.ID, "because", []string{"letters"}); err != nil {
		t.Fatal(err)
	}
	if n := count(t, f.pool,
		`SELECT count(*) FROM sagas WHERE lease IS NOT NULL AND next_at > clock_timestamp() + interval '5 seconds'`); n != 1 {
		t.Error("the retry ended the lease of the running step")
	}
	close(release)
	f.until(s.ID, ended)
}

func TestAFailingStepIsRetried(t *testing.T) {
	f := newSagaFixture(t)
	f.before = func(_ context.Context, s *domain.Saga) (domain.SagaResult, bool, error) {
		if s.Attempts == 1 {
			panic("no luck\x00")
		}
		return domain.SagaResult{}, false, map[bool]error{true: errors.New("no luck")}[s.Attempts < 3]
	}
	s, _ := f.start("k", 0)
	ctx, stop := context.WithCancel(t.Context())
	hurried := make(chan struct{})
	go func() { // the waits after failures are too long for a test
		defer close(hurried)
		for ctx.Err() == nil {
			_, _ = f.pool.Exec(ctx, `UPDATE sagas SET next_at = now() WHERE lease IS NULL AND next_at > now()`)
		}
	}()
	defer func() { stop(); <-hurried }()
	f.run(f.store)
	f.until(s.ID, func(s *domain.Saga) bool { return s.LastError == "panic: no luck" })
	if s := f.until(s.ID, ended); s.Attempts != 0 || s.LastError != "" {
		t.Errorf("it ended as %+v", s)
	}
}

func TestAStoppedRunnerLeavesNoLease(t *testing.T) {
	f := newSagaFixture(t)
	began := make(chan struct{})
	f.before = func(ctx context.Context, s *domain.Saga) (domain.SagaResult, bool, error) {
		close(began)
		<-ctx.Done()
		return domain.SagaResult{}, false, ctx.Err()
	}
	s, _ := f.start("k", 0)
	stop := f.run(f.store)
	<-began
	stop()
	if n := count(t, f.pool, `SELECT count(*) FROM sagas WHERE id = $1 AND lease IS NULL AND next_at <= clock_timestamp() AND attempts = 0
		AND last_error = ''`, s.ID); n != 1 {
		t.Errorf("after the stop it is %+v", f.saga(s.ID))
	}
}
