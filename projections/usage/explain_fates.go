package usage

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// usageFate holds the outcome of a recorded event: its refusals by the validator, its first verdict and its
// re-aggregated ones.
type usageFate struct {
	raw      int64
	refusals []refusal
	verdicts []countedUsage
	retries  map[uuid.UUID]int64 // positions of its retries by their ids; of figures as of a position
}

// refusal is a rejection of the figure's feature, for usage in its period.
type refusal struct {
	LeftOutUsage
	causation *uuid.UUID
	again     bool // after a retry
}

// check adds those of the recorded events to the list that were refused and that the figure does not
// count. It skips events that it has looked at, and with refused those without a refusal that belongs to
// the figure.
func (s *leftOutSearch) check(ctx context.Context, tx pgx.Tx, raws []int64, refused bool) error {
	fates := make(map[int64]*usageFate)
	for _, raw := range raws {
		if !s.seen[raw] {
			s.seen[raw], fates[raw] = true, &usageFate{raw: raw}
		}
	}
	if err := s.readRefusals(ctx, tx, fates); err != nil {
		return err
	}
	if refused {
		maps.DeleteFunc(fates, func(_ int64, f *usageFate) bool { return len(f.refusals) == 0 })
	}
	if len(fates) == 0 {
		return nil
	}
	if err := s.readVerdicts(ctx, tx, fates); err != nil {
		return err
	}
	for _, f := range fates {
		if u, out := s.lastRefusal(f); out {
			s.list = append(s.list, u)
		}
	}
	return nil
}

// lastRefusal returns the last known refusal of an event; false without one, or if a verdict of the figure
// counts the event.
func (s *leftOutSearch) lastRefusal(f *usageFate) (last LeftOutUsage, out bool) {
	at := func(number int64) events.Position {
		return events.Position{Partition: s.verdicts.partition, Number: number}
	}
	for i := range f.refusals {
		r := &f.refusals[i]
		if (s.live || f.cause(r.causation) <= s.cursor.asOf) && r.VerdictPosition.Number > last.VerdictPosition.Number {
			last = r.LeftOutUsage
		}
	}
	for i := range f.verdicts {
		c := &f.verdicts[i]
		if !s.live && !c.again && c.position > s.cursor.asOf {
			c.cause = f.cause(c.causation)
		}
		switch known := s.knows(c); {
		case known && c.folds:
			return LeftOutUsage{}, false
		case known && c.position > last.VerdictPosition.Number:
			why := s.verdicts.uncounted[c.position]
			last = LeftOutUsage{EventID: c.verdict.EventID, Kind: kindOf(&c.verdict), Status: projections.UsageDeadLettered, Code: why.code,
				Reason:    why.reason,
				Timestamp: c.verdict.Timestamp.UTC(), VerdictPosition: at(c.position)}
		}
	}
	last.Position = at(f.raw)
	return last, last.VerdictPosition.Number > 0
}

// cause is the position of the retry that led to a verdict or refusal, or that of the event itself.
func (f *usageFate) cause(causation *uuid.UUID) int64 { return causeAmong(f.retries, f.raw, causation) }

// Rejections have keys x/<position>/<attempt>. OFFSET 0 keeps a lookup to its range of keys. A correction has the period of its target:
// that of the verdict on it, else that of its time; without a target, that of its own time.
var readRefusals = events.SQL(`
SELECT given.raw, l.position, l.occurred_at, l.causation_id, l.payload,
  CASE r.subject WHEN {usage.event.corrected} THEN '` + events.TypeCorrection + `' WHEN {usage.event.retracted} THEN '` +
	events.TypeRetraction + `' ELSE '` + events.TypeUsage + `' END
FROM unnest($3::bigint[], $4::text[], $5::text[]) AS given (raw, after, before)
CROSS JOIN LATERAL (
  SELECT e.position, e.occurred_at, e.causation_id, e.payload FROM event_log e
  WHERE e.partition = $1 AND e.tenant_id = $2 AND e.dedupe_key > given.after AND e.dedupe_key < given.before OFFSET 0) l
CROSS JOIN LATERAL (SELECT e.subject, e.payload FROM event_log e WHERE e.partition = $1 AND e.position = given.raw LIMIT 1) r
LEFT JOIN LATERAL (SELECT e.position, e.occurred_at FROM event_log e WHERE r.subject IN ({usage.event.corrected}, {usage.event.retracted})
  AND e.partition = $1 AND e.tenant_id = $2 AND e.dedupe_key = 'u/' || (r.payload ->> 'correctionRef') LIMIT 1) t ON true
LEFT JOIN LATERAL (SELECT e.payload ->> 'periodKey' AS period FROM event_log e
  WHERE e.partition = $1 AND e.tenant_id = $2 AND e.dedupe_key = 'v/' || t.position LIMIT 1) v ON true
WHERE l.payload ->> 'feature' = $6
  AND CASE WHEN v.period IS NOT NULL THEN v.period = $9
   ELSE $7::timestamptz IS NULL OR coalesce(t.occurred_at, l.occurred_at) >= $7 AND coalesce(t.occurred_at, l.occurred_at) < $8 END`)

// readRefusals reads the refusals of the figure's feature, for usage in its period.
func (s *leftOutSearch) readRefusals(ctx context.Context, tx pgx.Tx, fates map[int64]*usageFate) error {
	var raws []int64
	var after, before []string
	for raw := range fates {
		prefix := "x/" + strconv.FormatInt(raw, 10)
		raws, after, before = append(raws, raw), append(after, prefix+"/"), append(before, prefix+"0")
	}
	if len(raws) == 0 {
		return nil
	}
	args := []any{s.verdicts.partition, s.TenantID, raws, after, before, s.Feature, s.from, s.to, s.PeriodKey}
	return query.Run(ctx, tx, query.New(readRefusals, args, query.Each(func(rows pgx.Rows) error {
		var raw int64
		var payload []byte
		r := refusal{LeftOutUsage: LeftOutUsage{Status: projections.UsageRejected,
			VerdictPosition: events.Position{Partition: s.verdicts.partition}}}
		if err := rows.Scan(&raw, &r.VerdictPosition.Number, &r.Timestamp, &r.causation, &payload, &r.Kind); err != nil {
			return err
		}
		var no events.Rejected
		if err := json.Unmarshal(payload, &no); err != nil {
			return err
		}
		r.EventID, r.Code, r.Reason, r.Timestamp, r.again = no.EventID, no.Code, no.Reason, r.Timestamp.UTC(), no.Attempt > 0
		fates[raw].refusals = append(fates[raw].refusals, r)
		return nil
	})))
}

// readVerdicts reads the verdicts on the events, and whether they count: the first by its key, the
// re-aggregated ones of those that do not count.
func (s *leftOutSearch) readVerdicts(ctx context.Context, tx pgx.Tx, fates map[int64]*usageFate) error {
	var keys []string
	for raw := range fates {
		keys = append(keys, events.KeyValidated(raw))
	}
	if err := s.addVerdicts(ctx, tx, fates, readVerdictsByKey, keys); err != nil {
		return err
	}
	var failed, retried usageNames
	for _, f := range fates {
		name, late := "", false
		for i := range f.refusals {
			r := &f.refusals[i]
			name, late = r.EventID, late || r.again && r.VerdictPosition.Number > s.cursor.asOf
		}
		for i := range f.verdicts {
			c := &f.verdicts[i]
			name, late = c.verdict.EventID, late || c.position > s.cursor.asOf
			if !c.folds {
				failed.add(name, f.raw)
			}
		}
		if late && !s.live {
			retried.add(name, f.raw)
		}
	}
	if err := s.readRetries(ctx, tx, fates, &retried); err != nil {
		return err
	}
	if len(failed.names) == 0 {
		return nil
	}
	return s.addVerdicts(ctx, tx, fates, readAgain, failed.names, failed.raws)
}

// usageNames are columns of producers' events: their ids and recorded positions.
type usageNames struct {
	names []string
	raws  []int64
}

func (n *usageNames) add(name string, raw int64) {
	n.names, n.raws = append(n.names, name), append(n.raws, raw)
}

// The events of a kind that followed a producer's event. An event has at most 100 retries of each of its
// dead letters.
func readFollowing(columns, subject string) string {
	return events.SQL(`
SELECT ` + columns + ` FROM unnest($3::text[], $4::bigint[]) AS given (name, raw)
CROSS JOIN LATERAL usage_stream($1, $2, given.name, given.raw, '{}', 0, 9223372036854775807, '{` + subject +
		`}', NULL, false, 10000) AS s (position)
CROSS JOIN LATERAL (SELECT e.* FROM event_log e WHERE e.partition = $1 AND e.position = s.position LIMIT 1) l`)
}

var (
	readAgain   = readFollowing(verdictColumns, "{usage.event.reaggregated}")
	readRetried = readFollowing("given.raw, l.event_id, l.position", "{usage.event.retried}")
)

const readVerdictsByKey = `
SELECT ` + verdictColumns + ` FROM unnest($3::text[]) AS given (key)
CROSS JOIN LATERAL (SELECT e.* FROM event_log e WHERE e.partition = $1 AND e.tenant_id = $2 AND e.dedupe_key = given.key LIMIT 1) l`

// addVerdicts reads verdicts on the events by a statement; given are its parameters from the third on.
func (s *leftOutSearch) addVerdicts(ctx context.Context, tx pgx.Tx, fates map[int64]*usageFate, sql string, given ...any) error {
	list, err := s.verdicts.read(ctx, tx, sql, append([]any{s.verdicts.partition, s.TenantID}, given...)...)
	if err != nil {
		return err
	}
	for i := range list {
		if f := fates[list[i].verdict.RawPosition]; f != nil {
			f.verdicts = append(f.verdicts, list[i])
		}
	}
	return nil
}

// readRetries reads the positions of the events' retries.
func (s *leftOutSearch) readRetries(ctx context.Context, tx pgx.Tx, fates map[int64]*usageFate, of *usageNames) error {
	if len(of.names) == 0 {
		return nil
	}
	args := []any{s.verdicts.partition, s.TenantID, of.names, of.raws}
	return query.Run(ctx, tx, query.New(readRetried, args, query.Each(func(rows pgx.Rows) error {
		var raw, position int64
		var id uuid.UUID
		err := rows.Scan(&raw, &id, &position)
		if fates[raw].retries == nil {
			fates[raw].retries = make(map[uuid.UUID]int64)
		}
		fates[raw].retries[id] = position
		return err
	})))
}
