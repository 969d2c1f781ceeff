package eventlog

import (
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/internal/must"
)

func submissionOf(rows int) *submission {
	return &submission{tenant: uuid.Must(uuid.NewV7()), batch: make([]metering.Submitted, rows), done: make(chan error, 1),
		load: newQueueLoad(0)}
}

func TestAGroupIsBoundedAndLosesNoSubmission(t *testing.T) {
	w := newWriter(&Log{}, true)
	for range 5 {
		w.queue <- submissionOf(maxGroupRows/2 - 1)
	}
	close(w.queue)
	var sizes []int
	for {
		group, ok := w.gather()
		if !ok {
			break
		}
		sizes = append(sizes, len(group))
	}
	if len(sizes) != 3 || sizes[0]+sizes[1]+sizes[2] != 5 {
		t.Errorf("groups of %v for 5 submissions, 2 of which fill one", sizes)
	}
}

// Stuck submissions are offered to a full queue with pauses, and do not delay others.
// None of them is lost, also when the log is closed.
func TestSubmissionsRefusedByAFullQueueAreOfferedAgain(t *testing.T) {
	own := newWriter(&Log{}, false)
	w := newWriter(&Log{writers: []*writer{own}}, true)
	var left []*submission
	for range maxQueued + 3 {
		left = append(left, submissionOf(1))
	}
	w.passOn(left)
	if len(own.queue) != maxQueued || len(w.stuck) != 3 {
		t.Fatalf("%d passed on, %d stuck", len(own.queue), len(w.stuck))
	}
	other := submissionOf(1)
	w.queue <- other
	if group, ok := w.gather(); !ok || len(group) != 1 || group[0] != other {
		t.Errorf("what a queue has no room for keeps others waiting: %d in the next group", len(group))
	}
	close(w.queue)
	const full = 20 * stuckPause
	began, busy := time.Now(), processTime(t)
	time.AfterFunc(full, func() {
		for range 3 {
			<-own.queue
		}
	})
	if _, ok := w.gather(); ok || len(w.stuck) != 0 || len(own.queue) != maxQueued {
		t.Errorf("%d stuck at the end, %d in the queue", len(w.stuck), len(own.queue))
	}
	if took, used := time.Since(began), processTime(t)-busy; took < full || used > took/2 {
		t.Errorf("waited %v and used %v of CPU time", took, used)
	}
}

func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must.OK(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
