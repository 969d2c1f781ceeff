package verify

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/google/uuid"
)

// Replay passes the rows of a partition to the checks that read only the log. It needs no database: it is the oracle of the simulation.
type Replay struct{ x *pass }

// Account names an account.
type Account struct {
	Tenant          uuid.UUID
	Feature, Period string
}

// Sums are the amounts of an account, integers of any size.
type Sums struct{ Used, Held string }

// ReservationKey names a reservation.
type ReservationKey struct {
	Tenant uuid.UUID
	ID     string
}

// Reservation is a reservation after its last event.
type Reservation struct {
	State           string
	Amount          int64
	Expires         time.Time
	HeldAt, EndedAt int64
	EventID         string
	Committed       int64
}

// NewReplay begins before the first row of a partition with a number of rows.
func NewReplay(partition int16, rows int64, now time.Time) *Replay {
	s := &state{head: rows, withheld: map[int64]bool{}, standIns: map[int64]bool{}, services: map[int32]string{}}
	return &Replay{newPass(s, partition, now)}
}

// newPass returns a pass that reads no database.
func newPass(s *state, partition int16, now time.Time) *pass {
	v := &verifier{Config: Config{Now: func() time.Time { return now }, Progress: func(string) {}}, report: newReport(), reported: now}
	x := &pass{verifier: v, state: s, p: partition, seed: maphash.MakeSeed()}
	x.begin()
	x.accounts, x.totals = newAccounts(now), runningTotals{figures: map[figure][]figure{}}
	return x
}

// Before passes an event of the catalogue from before the first row.
func (o *Replay) Before(tenant uuid.UUID, subject int16, payload []byte) {
	r := &row{tenant: tenant, subject: subject, body: payload}
	s, err := r.decode()
	o.x.addAccount(r, &s, err)
	o.x.addCrossing(r, &s, err)
}

// Add passes the next row, as PostgreSQL's binary form of rowColumns.
func (o *Replay) Add(values [][]byte) error {
	var r row
	if err := r.read(values); err != nil {
		return err
	}
	o.x.add(&r)
	return nil
}

// Account returns the sums of an account after the last row.
func (o *Replay) Account(of Account) Sums {
	if sum := o.x.accounts.sums[figure{tenant: of.Tenant, feature: of.Feature, period: of.Period}]; sum != nil {
		return Sums{sum.used.String(), sum.held.String()}
	}
	return Sums{"0", "0"}
}

// Accounts returns all accounts after the last row.
func (o *Replay) Accounts() map[Account]Sums {
	all := map[Account]Sums{}
	for f, sum := range o.x.accounts.sums {
		all[Account{f.tenant, f.feature, f.period}] = Sums{sum.used.String(), sum.held.String()}
	}
	return all
}

// Reservations returns all reservations after the last row, except those that ended long ago.
func (o *Replay) Reservations() map[ReservationKey]Reservation {
	all := map[ReservationKey]Reservation{}
	for k, r := range o.x.accounts.reservations {
		expires := time.UnixMicro(r.expires).UTC()
		all[ReservationKey{k.tenant, k.id}] = Reservation{r.state, r.amount, expires, r.heldAt, r.endedAt, r.eventID, r.committed}
	}
	return all
}

// Faults ends the partition, and returns the faults of the checks that read only the log.
func (o *Replay) Faults() (list []string) {
	o.x.endCrossings()
	r := o.x.report
	for _, t := range []*tally{r.positions, r.placement, r.payloadHashes, r.verdictContents, r.correctedUsage, r.quotaGrants,
		r.reservationLives, r.thresholdCrossings} {
		if t.faults > 0 {
			list = append(list, fmt.Sprintf("%s: %d faults: %q", t.name, t.faults, t.first))
		}
	}
	return list
}
