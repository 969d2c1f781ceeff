package audit

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// addTarget reads the usage that a correction or a retraction names, or that the verdict on one changes. It is a cause: its other
// effects are not wanted.
func (l *lineage) addTarget(ctx context.Context, e *events.Envelope) error {
	s := referencesOf(e)
	var positions []events.Position
	at := func(number int64) {
		positions = append(positions, events.Position{Partition: e.Position.Partition, Number: number})
	}
	switch {
	case e.Subject.IsCorrection():
		named := keyed(e.TenantID, e.Position.Partition, []string{events.KeyUsage(s.CorrectionRef)}, nil, func(rows pgx.Rows) error {
			var number int64
			err := rows.Scan(&number, nil, nil, nil)
			at(number)
			return err
		})
		if err := query.Run(ctx, l.tx, named); err != nil {
			return err
		}
	case e.Subject == events.UsageValidated && s.TargetPosition > 0:
		at(s.TargetPosition)
	}
	list, err := readEvents(ctx, l.tx, positions)
	for _, target := range list {
		if l.known[target.EventID] == nil && target.TenantID == e.TenantID {
			l.known[target.EventID] = &target
		}
	}
	return err
}

// Corrections and retractions that were applied to the usage at the positions $3, and the verdicts on them.
const readCorrections = `
SELECT $1::smallint, p.position FROM unnest($3::bigint[]) AS given (number)
CROSS JOIN LATERAL (
  SELECT c.cause, c.position FROM usage_corrections c WHERE c.tenant_id = $2 AND c.target = given.number ORDER BY c.n LIMIT 1000) c
CROSS JOIN LATERAL (VALUES (c.cause), (c.position)) AS p (position)
ORDER BY p.position`

// corrections returns the positions of the changes of usage, and of the verdicts on them.
func (l *lineage) corrections(ctx context.Context, causes []*events.Envelope) ([]events.Position, error) {
	var usage []int64
	for _, e := range causes {
		if e.Subject.IsUsage() {
			usage = append(usage, e.Position.Number)
		}
	}
	if len(usage) == 0 {
		return nil, nil
	}
	var positions []events.Position
	args := []any{l.root.Position.Partition, l.root.TenantID, usage}
	err := query.Run(ctx, l.tx, query.New(readCorrections, args, query.Into(&positions, scanPosition)))
	return positions, err
}

// targets returns the known usage that each known correction names, by the correction's id. The verdict on a correction stands for it
// if it is not known itself: it is not the cause of the verdict after a retry.
func (l *lineage) targets() map[uuid.UUID]uuid.UUID {
	usage, at := map[string]uuid.UUID{}, map[int64]*events.Envelope{}
	for _, e := range l.known {
		if e.TenantID != l.root.TenantID || e.Position.Partition != l.root.Position.Partition {
			continue // a cause in the platform's part of the log
		}
		at[e.Position.Number] = e
		if e.Subject.IsUsage() {
			usage[e.DedupeKey] = e.EventID
		}
	}
	found := map[uuid.UUID]uuid.UUID{}
	for _, e := range at {
		s := referencesOf(e)
		switch target := at[s.TargetPosition]; {
		case e.Subject.IsCorrection():
			if id, ok := usage[events.KeyUsage(s.CorrectionRef)]; ok {
				found[e.EventID] = id
			}
		case e.Subject == events.UsageValidated && target != nil && at[s.RawPosition] == nil:
			found[e.EventID] = target.EventID
		}
	}
	return found
}
