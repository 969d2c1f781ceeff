package postgres

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
)

func submissionOf(rows int) *submission {
	return &submission{tenant: uuid.Must(uuid.NewV7()), batch: make([]commands.Submitted, rows), done: make(chan error, 1), load: newQueueLoad(0)}
}

func TestOnlyACrowdIsWaitedFor(t *testing.T) {
	w := newWriter(&Log{}, true)
	w.last = crowd - 1
	if ends, _ := w.patience(); ends != nil {
		t.Error("a few wait for others")
	}
	w.last = crowd
	w.queue <- submissionOf(1)
	if group, ok := w.gather(); !ok || len(group) != 1 || w.last != 1 {
		t.Errorf("nobody else came: a group of %d, and %d rows to expect", len(group), w.last)
	}
	if ends, _ := w.patience(); ends != nil {
		t.Error("the crowd is gone and still waited for")
	}
	w.last = crowd
	if w.next(crowd, nil) != nil {
		t.Error("a group that is as large as the last one waits")
	}
	own := newWriter(&Log{}, false)
	own.last = 10 * crowd
	if ends, _ := own.patience(); ends != nil {
		t.Error("a partition's own writer waits")
	}
}

func TestAGroupIsBoundedAndLosesNobody(t *testing.T) {
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

func TestWhatAFullQueueDoesNotTakeIsInTheNextGroup(t *testing.T) {
	l := &Log{writers: []*writer{newWriter(&Log{}, false)}}
	w := newWriter(l, true)
	var left []*submission
	for range maxQueued + 3 {
		left = append(left, submissionOf(1))
	}
	w.passOn(left)
	group, ok := w.gather()
	if !ok || len(group) != 3 || len(l.writers[0].queue) != maxQueued {
		t.Errorf("%d in the next group, %d passed on", len(group), len(l.writers[0].queue))
	}
}
