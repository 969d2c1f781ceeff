// Package commands executes commands: it loads the state that a decision needs, decides by the rules of
// domain, and appends events. It appends the events that requests cause; consumers and the relay append the
// events that other events cause. The commands are in the folders below, one file for each noun; this package
// holds their common parts: the caller, the transaction of a change, conditions, scopes and sagas. No package of
// them depends on a database, broker or transport, only on small interfaces: those in this file, and those in the file
// of each noun.
package commands

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// ErrUnavailable means that the store did not respond, or that the outcome is
// unknown. The caller should send the same request again.
var ErrUnavailable = errors.New("the event log is not available")

// Overloaded is an ErrUnavailable with a known outcome: the queue is too long for a
// reasonable time, and the request was not started.
type Overloaded struct {
	Wait     time.Duration // estimated time to clear the queue
	Database bool          // database connections are the bottleneck
}

func (o *Overloaded) Error() string {
	return "overloaded: the append queue is full; the request was not started"
}

// Unwrap makes it an ErrUnavailable: the caller may send the same request again.
func (o *Overloaded) Unwrap() error { return ErrUnavailable }

// Answer is the stored first answer to a request with an Idempotency-Key. Body is nil once the answer is
// no longer kept.
type Answer struct {
	RequestHash [32]byte
	Body        []byte
}

// Answers loads and saves answers by their keys. A load of something that does not
// exist returns nil, in all ports.
type Answers interface {
	Versions
	Answer(key string) (*Answer, error)
	SaveAnswer(key string, a Answer) error
}

// Tenants loads tenants.
type Tenants interface {
	Tenant(id uuid.UUID) (*domain.Tenant, error)
}

// Appender appends events in order and returns their positions.
type Appender interface {
	Append(list ...events.Pending) ([]events.Position, error)
}

// Tx is the part of a change's transaction that every change needs. The file of each
// noun declares the rest.
type Tx interface {
	Answers
	Tenants
	Appender
}

// LogEpochs reads epochs of the log.
type LogEpochs interface {
	// Epoch returns the epoch of a tenant's partition, which does not change while its head is locked.
	Epoch(tenant uuid.UUID) (int32, error)
}

// DatabaseClock reads the clock that all instances share.
type DatabaseClock interface {
	// DatabaseTime returns the time of the database's clock.
	DatabaseTime() (time.Time, error)
}

// Store runs changes that only append.
type Store interface {
	// Change runs decide in one transaction that holds the head of the tenant's
	// partition (Platform: partition 0), so that loaded data cannot change before the
	// append. An error of decide rolls back and is returned unchanged. After some
	// failures Change rolls back and runs decide a second time.
	Change(ctx context.Context, tenant uuid.UUID, decide func(Tx) error) error
}

// Page selects a page of a list: up to Limit entries after the id or key After
// ("" for the first page). Lists are in ascending order of id or key.
type Page struct {
	Limit int
	After string
}

// Clock returns the time; the composition root passes time.Now.
type Clock func() time.Time
