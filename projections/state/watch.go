package state

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain/loop"
)

// Watch reads the state again and again, for an instance. Its methods may run concurrently.
type Watch struct {
	Pool *pgxpool.Pool
	// Accounts compares some accounts behind limits with the log, all of them in turns.
	Accounts func(context.Context) (Accounts, error)
	// Identity compares accepted events with their ends.
	Identity func(context.Context) (Comparison, error)
	// Viewed reports whether someone views the state: then it is worth a read of heads and lags each second.
	Viewed func() bool
	Ticks  loop.Ticks // the moments at which Run reads

	changes sync.Mutex
	state   atomic.Pointer[State]
	reads   int // complete reads that were tried
}

// State returns the state as it was last read.
func (w *Watch) State() *State {
	if s := w.state.Load(); s != nil {
		return s
	}
	return new(State)
}

// Set changes a part of the state.
func (w *Watch) Set(change func(*State)) {
	w.changes.Lock()
	defer w.changes.Unlock()
	next := *w.State()
	change(&next)
	w.state.Store(&next)
}

const (
	readEvery = 2 * time.Second
	// partTime bounds the read of a part.
	partTime = 2 * time.Second
	// viewedEvery is how often heads and lags are read while someone views the state.
	viewedEvery = time.Second
	// serverEach is the number of reads per read of the server's state.
	serverEach = 2
	// slowEach is the number of reads per read of the parts that are large or change slowly.
	slowEach = 8
	// manyLetters bounds the dead letters counted of each status and stage, and fewLetters those of the reads between: they find the
	// first failure at once, and leave a larger count to the next complete read.
	manyLetters = 100_000
	fewLetters  = 1_000
)

// Run reads the state until ctx ends. Every instance reads all of it: one that neither relays nor folds would know no state otherwise.
func (w *Watch) Run(ctx context.Context) error {
	n := 0
	return loop.Loop{Every: viewedEvery, Ticks: w.Ticks}.Run(ctx, func(ctx context.Context) error {
		switch {
		case n%int(readEvery/viewedEvery) == 0:
			w.Read(ctx)
		case w.Viewed() && w.readProgress(ctx) == nil:
			w.Set(func(s *State) { s.ReadAt = time.Now().UTC() })
		}
		n++
		return nil
	})
}

// Read reads the state once; parts of it that change slowly are read less often. A part that cannot be read stays as it was, and ReadAt,
// too.
func (w *Watch) Read(ctx context.Context) {
	slow, server := w.reads%slowEach == 0, w.reads%serverEach == 0
	w.reads++
	failed := errors.Join(
		w.readProgress(ctx),
		read(ctx, w, func(s *State) *Generations { return &s.Generations }),
		read(ctx, w, func(s *State) *LastRebuilds { return &s.LastRebuilds }),
		read(ctx, w, func(s *State) *Units { return &s.Units }),
		w.readLetters(ctx, slow),
		read(ctx, w, func(s *State) *Sagas { return &s.Sagas }),
		read(ctx, w, func(s *State) *Pushes { return &s.Pushes }),
		read(ctx, w, func(s *State) *Webhooks { return &s.Webhooks }),
		keep(ctx, w, w.Accounts, func(s *State, turn Accounts) { s.Accounts = turn }))
	if slow {
		failed = errors.Join(failed, read(ctx, w, func(s *State) *DisabledWebhooks { return &s.Disabled }))
	}
	if server {
		of := func(ctx context.Context) (Server, error) { return ReadServer(ctx, w.Pool) }
		failed = errors.Join(failed, keep(ctx, w, of, func(s *State, server Server) { s.Server = &server }))
	}
	if failed == nil {
		w.Set(func(s *State) { s.ReadAt = time.Now().UTC() })
	}
}

// readProgress reads how far the log is published and folded.
func (w *Watch) readProgress(ctx context.Context) error {
	return errors.Join(
		read(ctx, w, func(s *State) *Outbox { return &s.Outbox }),
		read(ctx, w, func(s *State) *Lags { return &s.Lags }))
}

func (w *Watch) readLetters(ctx context.Context, all bool) error {
	most := int64(fewLetters)
	if all {
		most = manyLetters
	}
	of := func(ctx context.Context) (DeadLetters, error) {
		letters := DeadLetters{Most: most}
		err := Read(ctx, w.Pool, &letters)
		return letters, err
	}
	return keep(ctx, w, of, func(s *State, letters DeadLetters) {
		letters.atLeast(s.DeadLetters)
		s.DeadLetters = letters
	})
}

// read reads the part of the state in a member.
func read[P any, Pointer interface {
	*P
	Part
}](ctx context.Context, w *Watch, member func(*State) *P) error {
	of := func(ctx context.Context) (part P, err error) {
		err = Read(ctx, w.Pool, Pointer(&part))
		return part, err
	}
	return keep(ctx, w, of, func(s *State, part P) { *member(s) = part })
}

// keep gets a part in time, and keeps it unless that failed.
func keep[P any](ctx context.Context, w *Watch, get func(context.Context) (P, error), set func(*State, P)) error {
	ctx, cancel := context.WithTimeout(ctx, partTime)
	defer cancel()
	part, err := get(ctx)
	if err == nil {
		w.Set(func(s *State) { set(s, part) })
	}
	return err
}

const (
	// identityEvery is the shortest pause between two comparisons.
	identityEvery = 10 * time.Second
	// identityShare is the pause after a comparison, as a multiple of its duration: it sums rows of all tenants, so that it gets rarer
	// as it gets slower.
	identityShare = 100
	identityTime  = time.Minute
)

// Identify compares accepted events with their ends until ctx ends. A failed comparison is repeated after the pause.
func (w *Watch) Identify(ctx context.Context) error {
	return loop.Loop{}.RunPaced(ctx, func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		bounded, cancel := context.WithTimeout(ctx, identityTime)
		defer cancel()
		if identity, err := w.Identity(bounded); err == nil {
			identity.ComparedAt = began.UTC()
			w.Set(func(s *State) { s.Identity = &identity })
		}
		return max(identityEvery, identityShare*time.Since(began)), nil
	})
}

// messagesEvery is how often the messages of usage.commands are counted in the pipe.
const messagesEvery = 5 * time.Second

// CountMessages counts the messages of usage.commands that its consumer has not passed until ctx ends. While the pipe does not answer,
// the last count stays.
func (w *Watch) CountMessages(ctx context.Context, waiting func(context.Context) (map[int16]int64, error)) error {
	return loop.Loop{Every: messagesEvery}.Run(ctx, func(ctx context.Context) error {
		bounded, stop := context.WithTimeout(ctx, messagesEvery)
		defer stop()
		if counts, err := waiting(bounded); err == nil {
			w.Set(func(s *State) { s.UsageCommands = counts })
		}
		return nil
	})
}

// Accounts is the last turn through the accounts behind limits.
type Accounts struct {
	Differ     int64   // from the log
	Compared   int     // partitions of the log
	AgeSeconds float64 // of the partition that was not compared for the longest time
}

// Comparison accounts for every accepted event: accepted = aggregated + rejected + in flight + parked.
type Comparison struct {
	Holds      bool      `json:"holds" doc:"Whether every accepted event is aggregated, rejected, in flight or parked."`
	Accepted   int64     `json:"accepted"`
	Aggregated int64     `json:"aggregated"`
	Rejected   int64     `json:"rejected"`
	InFlight   int64     `json:"inFlight"`
	Parked     int64     `json:"parked"`
	Missing    int64     `json:"missing" doc:"Accepted events that are in no other term."`
	ComparedAt time.Time `json:"comparedAt" doc:"Time of the comparison."`
	AgeSeconds float64   `json:"ageSeconds" doc:"Age of the comparison." example:"12.4"`
}
