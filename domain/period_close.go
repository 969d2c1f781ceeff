package domain

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// CloseDeadline is the time after which a close that still waits is partial.
const CloseDeadline = 15 * time.Minute

// Conditions that a close waits for.
const (
	MissingAggregation = "not_aggregated"        // events up to the cut are not folded
	MissingLetters     = "dead_letters"          // events up to the cut failed, and wait for a retry or a discard
	MissingRetries     = "dead_letters_retrying" // failed events up to the cut are being retried
	MissingRebuilds    = "rebuilds"              // a rebuild of the figures is open
)

// Waivable lists the conditions that a close can do without.
func Waivable() []string { return []string{MissingLetters, MissingRebuilds} }

// Closable returns the number of the snapshot that a close of a period begins. Of a period that is closing or closed it returns the last
// change instead. Refusals: period_key_invalid, period_not_closable (lifetime, and a period that has not begun), period_not_ended.
func (h *PeriodHistory) Closable(periodKey string, early bool, now time.Time) (snapshot int, known *PeriodChange, refusal *Error) {
	last := h.Last(periodKey)
	if last.State() != StateOpen {
		return 0, last, nil
	}
	if periodKey == PeriodLifetime {
		return 0, nil, &Error{Code: "period_not_closable", Message: "lifetime has no end: only the end of the tenant closes it"}
	}
	if refusal := CheckPeriodKey(periodKey); refusal != nil {
		return 0, nil, refusal
	}
	start, end, _ := PeriodBounds(periodKey)
	switch {
	case now.Before(start):
		return 0, nil, &Error{Code: "period_not_closable", Message: "The period " + periodKey + " begins at " + FormatTime(start) +
			": a period that has not begun cannot be closed"}
	case now.Before(end) && !early:
		return 0, nil, &Error{Code: "period_not_ended", Message: "The period " + periodKey + " ends at " + FormatTime(end) +
			"; send early to close it before"}
	case last == nil:
		return 1, nil, nil
	}
	return last.Snapshot + 1, nil, nil
}

// CheckPeriodKey refuses a text that is no key of a month or a year. The end of the last month of 9999 cannot be written as RFC 3339.
func CheckPeriodKey(key string) *Error {
	if start, end, ok := PeriodBounds(key); ok && start.Year() >= 1 && end.Year() <= 9999 {
		return nil
	}
	return &Error{Code: "period_key_invalid", Pointer: "/periodKey",
		Message: "a period key is a month such as 2026-05 or a year such as 2026"}
}

// Reopenable returns the snapshot that a reopening ends. Refusals: period_not_closed, period_closing.
func (h *PeriodHistory) Reopenable(periodKey string) (snapshot int, refusal *Error) {
	switch last := h.Last(periodKey); last.State() {
	case StateOpen:
		return 0, &Error{Code: "period_not_closed", Message: "The period " + periodKey + " is open"}
	case StateClosing:
		return 0, &Error{Code: "period_closing", Message: "The period " + periodKey + " is being closed; wait until it is CLOSED"}
	default:
		return last.Snapshot, nil
	}
}

// FigureLine is the figure of a feature under a subscription. Amount is an integer of any size.
type FigureLine struct {
	Feature        string
	SubscriptionID uuid.UUID
	Amount         *big.Int
	EventCount     int64
	LastEventAt    time.Time
}

// Figures are the figures of a tenant's period, in the order of feature and subscription, by the fold of a generation.
type Figures struct {
	Generation int
	Logic      string // version of the fold
	Lines      []FigureLine
	Grants     []GrantSum    // of figures of the log: the lines by grant
	Charges    []ChargeLine  // of figures of the log, as known at the cut
	LogicHash  string        // of figures of the log: the hash of the fold's result over the golden log
	Late       *LateVerdicts // of figures of the log
}

// LateVerdicts are the verdicts of a close that are not in its figures since they are behind the cut, up to a position.
type LateVerdicts struct {
	UpTo int64
	List []LateVerdict
}

// LateVerdict is the addition of one of them to a line.
type LateVerdict struct {
	Position       int64
	Feature        string
	SubscriptionID uuid.UUID
	Amount, Count  int64
}

// Differs returns the first line that differs from the same figures computed in another way, by amount or count; "" if all agree. A line
// without amount and events is the same as no line.
func (f *Figures) Differs(o *Figures) string {
	type key struct {
		feature      string
		subscription uuid.UUID
	}
	of := map[key]FigureLine{}
	for _, l := range o.Lines {
		of[key{l.Feature, l.SubscriptionID}] = l
	}
	none := FigureLine{Amount: new(big.Int)}
	describe := func(at key, a, b FigureLine) string {
		return fmt.Sprintf("%s under %s: %s in %d events by the log, %s in %d by the rows", at.feature, at.subscription, a.Amount,
			a.EventCount, b.Amount, b.EventCount)
	}
	for _, l := range f.Lines {
		at := key{l.Feature, l.SubscriptionID}
		other, ok := of[at]
		if !ok {
			other = none
		}
		delete(of, at)
		if l.Amount.Cmp(other.Amount) != 0 || l.EventCount != other.EventCount {
			return describe(at, l, other)
		}
	}
	for _, l := range o.Lines {
		at := key{l.Feature, l.SubscriptionID}
		if _, left := of[at]; left && (l.Amount.Sign() != 0 || l.EventCount != 0) {
			return describe(at, none, l)
		}
	}
	return ""
}

// FiguresHash returns the hex SHA-256 of a snapshot's figures: of a document in the form of RFC 8785, so that a reader computes it from the
// answer of GET …/periods/{key}.
func (f *Figures) FiguresHash(tenant uuid.UUID, periodKey string, snapshot int, cut events.Position) string {
	sum := sha256.Sum256(f.Document(tenant, periodKey, snapshot, cut))
	return hex.EncodeToString(sum[:])
}

// Document returns the document that FiguresHash hashes.
func (f *Figures) Document(tenant uuid.UUID, periodKey string, snapshot int, cut events.Position) []byte {
	out := strictjson.AppendString([]byte(`{"cut":`), cut.String())
	out = append(out, `,"lines":[`...)
	for i, l := range f.Lines {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, `{"amount":"`...)
		out = l.Amount.Append(out, 10)
		out = strconv.AppendInt(append(out, `","eventCount":`...), l.EventCount, 10)
		out = strictjson.AppendString(append(out, `,"feature":`...), l.Feature)
		out = append(append(append(out, `,"subscriptionId":"`...), l.SubscriptionID.String()...), `"}`...)
	}
	out = strictjson.AppendString(append(out, `],"logic":`...), f.Logic)
	out = strictjson.AppendString(append(out, `,"periodKey":`...), periodKey)
	out = strconv.AppendInt(append(out, `,"snapshot":`...), int64(snapshot), 10)
	return append(append(append(out, `,"tenantId":"`...), tenant.String()...), `"}`...)
}

// Closing is the close of a tenant's period.
type Closing struct {
	TenantID  uuid.UUID
	PeriodKey string
	Snapshot  int
}

// Snapshot holds the frozen figures of a period.
type Snapshot struct {
	Closing
	Cut            int64 // number of the request to close
	FrozenPosition int64 // number of the event that closed the period
	FrozenAt       time.Time
	FiguresHash    string
	ChargesHash    string
	Figures        Figures
	Despite        []string // conditions that were missing
}

// UnreconciledLine is the difference of a line of a closed period from its frozen figure and its adjustments.
type UnreconciledLine struct {
	PeriodKey string
	Snapshot  int
	FigureLine
}

// Parts returns the payloads of the events that freeze the figures: one at least.
func (f *Figures) Parts(periodKey string, snapshot int) []events.Frozen {
	parts := max(1, (max(len(f.Lines), len(f.Charges))+events.MaxFrozenLines-1)/events.MaxFrozenLines)
	list := make([]events.Frozen, parts)
	for i := range list {
		list[i] = events.Frozen{PeriodKey: periodKey, Snapshot: snapshot, Part: i + 1, Parts: parts, Lines: []events.FrozenLine{}}
		for _, l := range part(f.Lines, i) {
			list[i].Lines = append(list[i].Lines, events.FrozenLine{Feature: l.Feature, SubscriptionID: l.SubscriptionID,
				Amount:     l.Amount.String(),
				EventCount: l.EventCount, LastEventAt: l.LastEventAt.UTC()})
		}
		for _, l := range part(f.Charges, i) {
			list[i].Charges = append(list[i].Charges, l.Frozen())
		}
	}
	return list
}

// part returns the i-th part of a list, which may be empty.
func part[T any](list []T, i int) []T {
	return list[min(len(list), i*events.MaxFrozenLines):min(len(list), (i+1)*events.MaxFrozenLines)]
}

// Adjustment is the state of an adjustment on which decisions depend.
type Adjustment struct {
	ID        uuid.UUID
	TenantID  uuid.UUID
	PeriodKey string
	Snapshot  int
	State     string
	Amount    *big.Int
}

// PeriodsOf returns the snapshots of adjustments, each once.
func PeriodsOf(list []Adjustment) (of []Closing) {
	for i := range list {
		c := Closing{list[i].TenantID, list[i].PeriodKey, list[i].Snapshot}
		if !slices.Contains(of, c) {
			of = append(of, c)
		}
	}
	return of
}

// Decidable returns the reason against a decision, nil if the adjustment is pending.
func (a *Adjustment) Decidable() *Error {
	if a.State == events.AdjustmentPending {
		return nil
	}
	return &Error{Code: "adjustment_decided", Message: "The adjustment " + a.ID.String() + " is " + a.State + "; a decision is final"}
}
