package eventlog

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
)

// Resolve finds the outcome of a COMMIT without an answer, by an event that its transaction
// appended: nil if the event is in the log. The head's lock waits for the end of that transaction.
func (l *Log) Resolve(appended *events.Pending) error {
	ctx, cancel := context.WithTimeout(context.Background(), resolveFor)
	defer cancel()
	return l.InServerLife(ctx, func() error {
		return postgres.InTx(ctx, l.db, func(t pgx.Tx) error {
			if err := l.LockHeads(ctx, In(t), []int16{events.PartitionOf(appended.TenantID)}); err != nil {
				return err
			}
			known, err := dedupe.Probe(ctx, t, []*events.Pending{appended})
			if err != nil {
				return err
			}
			if f, ok := known[dedupe.KeyOf(appended)]; !ok || f.EventID != appended.EventID {
				return errors.New("the change was not committed")
			}
			return nil
		})
	})
}
