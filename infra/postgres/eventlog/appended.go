package eventlog

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// appended reports the rows of an append to Config.Appended.
func (l *Log) appended(ctx context.Context, began time.Time, rows []server.Row) {
	if l.cfg.Appended == nil || len(rows) == 0 {
		return
	}
	l.cfg.Appended(ctx, began, len(rows), func(i int) (*events.Pending, events.Position) { return rows[i].Pending, rows[i].Position })
}

// appendedWith reports the events that a group's events cause, which have no caller: verdicts and crossings of thresholds.
func (l *Log) appendedWith(began time.Time, rows []server.Row) {
	if l.cfg.Appended == nil {
		return
	}
	caused := slices.DeleteFunc(slices.Clone(rows), func(r server.Row) bool { return r.CausationID == uuid.Nil })
	l.appended(context.Background(), began, caused)
}

// submitted reports the events of a submission that were stored by it.
func (l *Log) submitted(ctx context.Context, began time.Time, s *submission, err error) {
	if l.cfg.Appended == nil || err != nil {
		return
	}
	var stored []server.Row
	for i := range s.batch {
		if s.outcomes[i].Status == metering.Appended {
			stored = append(stored, server.Row{Pending: &s.batch[i].Pending, Position: s.outcomes[i].Position})
		}
	}
	l.appended(ctx, began, stored)
}
