package e2e

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// accountFold folds accounts and reservations from the log, a stretch at each sample, and compares them with the tables in the
// same snapshot. It shares no code with the service and with meterplex verify.
type accountFold struct {
	parts   [32]partitionFold
	samples int
	grants  int
	ended   map[string]int // reservations, by how they ended
}

// partitionFold is the fold of a partition up to an event.
type partitionFold struct {
	upTo     int64
	last     string // id of the last event: another one there is of another history
	accounts map[accountName]*accountSums
	open     map[string]int64 // held amounts by tenant and reservation
}

type accountName struct{ tenant, feature, period string }

type accountSums struct{ used, held int64 }

// limitEvent has the members of events that change accounts.
type limitEvent struct {
	Feature, FeatureType, PeriodKey, ReservationID string
	Amount                                         int64
	Used, Held                                     json.Number
	Limit                                          *int64
	Admitted                                       json.RawMessage
}

type admittedAs struct {
	By, FeatureType, PeriodKey, ReservationID string
	Used, Held                                json.Number
	Limit                                     *int64
	HeldAmount                                int64
}

const (
	foldHeadsSQL = `SELECT h.partition, h.position, coalesce((SELECT l.event_id::text FROM event_log_rows l WHERE l.partition = h.partition AND l.position = k.upto), ''),
 coalesce((SELECT l.event_id::text FROM event_log_rows l WHERE l.partition = h.partition AND l.position = h.position), '')
 FROM log_heads h JOIN unnest($1::smallint[], $2::bigint[]) AS k (partition, upto) ON k.partition = h.partition`
	foldEventsSQL = `SELECT l.partition, l.position, l.tenant_id::text, l.subject, l.payload::text
 FROM unnest($1::smallint[], $2::bigint[]) AS k (partition, upto) JOIN event_log_rows l ON l.partition = k.partition AND l.position > k.upto
 WHERE l.subject IN (8, 60, 61, 62, 63) OR l.subject = 2 AND l.body::text LIKE '%"QUOTA"%' ORDER BY 1, 2`
	tablesSQL = `SELECT a.tenant_id::text, a.feature, a.period_key, a.used::bigint, a.held::bigint,
 (SELECT coalesce(sum(r.amount), 0)::bigint FROM reservations r WHERE r.tenant_id = a.tenant_id AND r.feature = a.feature AND r.period_key = a.period_key AND r.state = 'HELD')
 FROM quota_accounts a`
)

// sample folds the events since the last sample, and returns the faults. The limits of all QUOTA features are HARD.
func (f *accountFold) sample(ctx context.Context, tx pgx.Tx) (faults []string, err error) {
	partitions, upTo := make([]int16, 32), make([]int64, 32)
	for p := range f.parts {
		partitions[p], upTo[p] = int16(p), f.parts[p].upTo
	}
	var heads [32]partitionFold
	rows, err := tx.Query(ctx, foldHeadsSQL, partitions, upTo)
	if err != nil {
		return nil, err
	}
	var p int16
	var head int64
	var was, last string
	if _, err = pgx.ForEachRow(rows, []any{&p, &head, &was, &last}, func() error {
		heads[p].upTo, heads[p].last = head, last
		if now := &f.parts[p]; now.accounts == nil || now.upTo > 0 && was != now.last {
			*now = partitionFold{accounts: map[accountName]*accountSums{}, open: map[string]int64{}}
			upTo[p] = 0
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if rows, err = tx.Query(ctx, foldEventsSQL, partitions, upTo); err != nil {
		return nil, err
	}
	var position int64
	var tenant, payload string
	var subject int16
	if _, err = pgx.ForEachRow(rows, []any{&p, &position, &tenant, &subject, &payload}, func() error {
		if fault := f.add(&f.parts[p], tenant, subject, payload); fault != "" {
			faults = append(faults, fmt.Sprintf("%d-%d: %s: %s", p, position, fault, payload))
		}
		return nil
	}); err != nil {
		*f = accountFold{ended: f.ended, samples: f.samples, grants: f.grants} // part of the events may be folded
		return nil, err
	}
	for p := range f.parts {
		f.parts[p].upTo, f.parts[p].last = heads[p].upTo, heads[p].last
	}
	f.samples++
	more, err := f.compare(ctx, tx)
	return append(faults, more...), err
}

// add folds an event, and returns its fault.
func (f *accountFold) add(p *partitionFold, tenant string, subject int16, payload string) string {
	var e limitEvent
	var g admittedAs
	if err := json.Unmarshal([]byte(payload), &e); err != nil {
		return err.Error()
	}
	if subject == 8 {
		if err := json.Unmarshal(e.Admitted, &g); err != nil {
			return err.Error()
		}
		e.FeatureType, e.PeriodKey, e.ReservationID, e.Limit, e.Used, e.Held = g.FeatureType, g.PeriodKey, g.ReservationID, g.Limit, g.Used, g.Held
	}
	key := tenant + "/" + e.ReservationID
	held, open := p.open[key]
	switch {
	case subject == 60 && open:
		return "held twice"
	case subject == 60:
		p.open[key] = e.Amount
	case (subject > 60 || g.By == "commit") && !open:
		return "the reservation is not held"
	case subject > 60 && held != e.Amount, g.By == "commit" && held != g.HeldAmount:
		return "another amount than is held"
	case subject > 61 || g.By == "commit":
		delete(p.open, key)
		f.ended[map[int16]string{8: "committed", 62: "released", 63: "expired"}[subject]]++
	}
	if e.FeatureType != "QUOTA" {
		return ""
	}
	name := accountName{tenant, e.Feature, e.PeriodKey}
	sums := p.accounts[name]
	if sums == nil {
		sums = &accountSums{}
		p.accounts[name] = sums
	}
	switch subject {
	case 2:
		if string(e.Admitted) != "true" { // a correction changes the account by its difference
			sums.used += e.Amount
		}
		return ""
	case 8:
		sums.used, sums.held = sums.used+e.Amount, sums.held-g.HeldAmount
	case 60:
		sums.held += e.Amount
	case 62, 63:
		sums.held -= e.Amount
	}
	f.grants++
	switch {
	case e.Used.String() != fmt.Sprint(sums.used) || e.Held.String() != fmt.Sprint(sums.held):
		return fmt.Sprintf("records another account than %+v", *sums)
	case (subject == 60 || subject == 8 && g.By != "commit") && (e.Limit == nil || sums.used+sums.held > *e.Limit):
		return fmt.Sprintf("granted beyond the limit, by %+v", *sums)
	}
	return ""
}

// compare compares the tables with the fold.
func (f *accountFold) compare(ctx context.Context, tx pgx.Tx) (faults []string, err error) {
	rows, err := tx.Query(ctx, tablesSQL)
	if err != nil {
		return nil, err
	}
	var name accountName
	var is accountSums
	var open int64
	seen := map[accountName]bool{}
	_, err = pgx.ForEachRow(rows, []any{&name.tenant, &name.feature, &name.period, &is.used, &is.held, &open}, func() error {
		seen[name] = true
		want := f.parts[partitionOf(name.tenant)].accounts[name]
		if want == nil || *want != is || open != is.held {
			faults = append(faults, fmt.Sprintf("the account %v is %+v with %d in open reservations, by the log %+v", name, is, open, want))
		}
		return nil
	})
	if err != nil {
		return nil, err // the server may have ended before all accounts were read
	}
	for p := range f.parts {
		for name, want := range f.parts[p].accounts {
			if !seen[name] {
				faults = append(faults, fmt.Sprintf("the account %v is missing, by the log %+v", name, *want))
			}
		}
	}
	return faults, nil
}
