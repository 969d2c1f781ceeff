package commands

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
)

// renewal is an answer of the queue to a request for a lease, and its delay.
type renewal struct {
	after time.Duration
	err   error
	lost  bool // another instance holds the lease
	hangs bool // until the caller gives up
}

// thirtieth is a part of a lease. Delays are drawn from a list of parts: rapid draws small numbers more often than large ones, but the
// members of a list alike.
const thirtieth = sagaLease / 30

func drawPart(t *rapid.T, of string) time.Duration {
	return rapid.SampledFrom([]time.Duration{0, 1, 5, 9, 10, 11, 14, 15, 16, 19, 20, 21, 24, 25, 26, 29}).Draw(t, of) * thirtieth
}

func drawRenewal(t *rapid.T) (r renewal) {
	r.after = drawPart(t, "answered after")
	switch rapid.SampledFrom([]string{"held", "held", "held", "failed", "lost", "hangs"}).Draw(t, "answer") {
	case "failed":
		r.err = errors.New("the database is away")
	case "lost":
		r.lost = true
	case "hangs":
		r.hangs = true
	}
	return r
}

// leaseQueue holds one saga, and answers slowly. The database may have run a statement as soon as it was sent, so that a lease ends that
// early.
type leaseQueue struct {
	leasedAfter time.Duration
	renewals    []renewal // the last one repeats
	ends        time.Time // when another instance may lease the saga
	asked       bool
	settled     int
}

func (q *leaseQueue) NextSaga(context.Context, []string) (time.Duration, bool, error) {
	return 0, !q.asked, nil
}

func (q *leaseQueue) LeaseSaga(_ context.Context, _ []string, _ uuid.UUID, until time.Duration) (*domain.Saga, error) {
	if q.asked {
		return nil, nil
	}
	q.asked, q.ends = true, time.Now().Add(until)
	time.Sleep(q.leasedAfter)
	return &domain.Saga{ID: uuid.New(), Kind: "test", Step: "only"}, nil
}

func (q *leaseQueue) RenewSaga(ctx context.Context, _, _ uuid.UUID, until time.Duration) (bool, error) {
	r, sent := q.renewals[0], time.Now()
	if len(q.renewals) > 1 {
		q.renewals = q.renewals[1:]
	}
	answered := time.After(r.after)
	if r.hangs || ctx.Err() != nil {
		answered = nil
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-answered:
	}
	if r.err == nil && !r.lost {
		q.ends = sent.Add(until)
	}
	return r.err == nil && !r.lost, r.err
}

func (q *leaseQueue) SettleSaga(_ context.Context, _, _ uuid.UUID, change func(*domain.Saga, time.Time)) (*domain.Saga, error) {
	q.settled++
	s := new(domain.Saga)
	change(s, time.Now())
	return s, nil
}

// runLeased runs the one step of a queue, which lasts for a time unless its context ends. It returns the time of the end, and the cause if
// the context ended.
func runLeased(q *leaseQueue, lasts time.Duration) (over time.Time, cause error) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	kind := SagaKind{Name: "test", Steps: []string{"only"}, Run: func(ctx context.Context, _ *domain.Saga) (domain.SagaResult, error) {
		select {
		case <-ctx.Done():
		case <-time.After(lasts):
		}
		cause, over = context.Cause(ctx), time.Now()
		close(done)
		return domain.SagaDone(), cause
	}}
	r := &SagaRunner{Queue: q, Kinds: []SagaKind{kind}, NewID: uuid.New, Logger: slog.New(slog.DiscardHandler)}
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	<-done
	synctest.Wait() // until its result is saved
	stop()
	<-ended
	return over, cause
}

// TestP8_AStepEndsBeforeItsLeaseDoes, whatever the answers of the queue are: another instance runs it from then on. Its result is saved if
// the lease was held all the time, and only then.
func TestP8_AStepEndsBeforeItsLeaseDoes(t *testing.T) {
	lost, kept := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		q := &leaseQueue{leasedAfter: drawPart(r, "leased after")}
		for range rapid.IntRange(1, 8).Draw(r, "renewals") {
			q.renewals = append(q.renewals, drawRenewal(r))
		}
		lasts := rapid.SampledFrom([]time.Duration{time.Second, sagaLease / 2, sagaLease, 2 * sagaLease, 10 * sagaLease}).Draw(r,
			"the step lasts")
		var problem string
		synctest.Test(t, func(*testing.T) {
			over, cause := runLeased(q, lasts)
			switch {
			case over.After(q.ends):
				problem = fmt.Sprintf("the step ended %s after its lease", over.Sub(q.ends))
			case cause == nil && q.settled != 1, cause != nil && q.settled != 0, cause != nil && !errors.Is(cause, errLeaseLost):
				problem = fmt.Sprintf("the step ended by %v and its result was saved %d times", cause, q.settled)
			case cause == nil:
				kept++
			default:
				lost++
			}
		})
		if problem != "" {
			r.Fatal(problem)
		}
	})
	if t.Logf("%d steps kept their lease and %d lost it", kept, lost); kept == 0 || lost == 0 {
		t.Error("nothing was shown")
	}
}

// TestASlowQueueEndsNoStep that is renewed before half of its lease is over.
func TestASlowQueueEndsNoStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := renewal{after: time.Second, err: errors.New("the database is away")}
		q := &leaseQueue{leasedAfter: sagaLease / 6, renewals: []renewal{{after: sagaLease / 6}, failed, {after: sagaLease / 6}}}
		if _, cause := runLeased(q, time.Hour); cause != nil || q.settled != 1 {
			t.Errorf("the step ended by %v and its result was saved %d times", cause, q.settled)
		}
	})
}

// A slot rests after a step, so that many sagas at once leave time to requests: longer after a short step than after a long one, which a
// busy machine makes slow.
func TestASlotRestsAfterAStep(t *testing.T) {
	for _, c := range []struct {
		rests     int
		ran, want time.Duration
	}{
		{0, 0, 0},
		{0, 30 * time.Millisecond, 30 * time.Millisecond},
		{3, 10 * time.Millisecond, 30 * time.Millisecond},
		{3, 30 * time.Millisecond, 40 * time.Millisecond},
		{3, 60 * time.Millisecond, 60 * time.Millisecond},
		{3, time.Minute, time.Second},
	} {
		if got := (&SagaRunner{Rests: c.rests}).rest(c.ran); got != c.want {
			t.Errorf("%d times, after %s: %s, want %s", c.rests, c.ran, got, c.want)
		}
	}
}
