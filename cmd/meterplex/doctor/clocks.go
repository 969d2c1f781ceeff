package doctor

import (
	"context"
	"fmt"
	"time"
)

// databaseClock compares the clock of the server with this machine's, less the time of the request.
func databaseClock(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var at time.Time
	before := s.Now()
	if err := db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at); err != nil {
		return "", "", err
	}
	took := s.Now().Sub(before)
	off := (at.Sub(before.Add(took / 2))).Abs() - took/2
	return statusOf(off, clockWarning, clockFailure), fmt.Sprintf("the database's clock is within %s of this machine's",
		max(off, took/2).Round(time.Millisecond)), nil
}

// brokerClock compares the newest time that the brokers gave a record with this machine's clock, which must be later.
func brokerClock(ctx context.Context, s *subject) (State, string, error) {
	at, err := s.admin.NewestRecord(ctx)
	if err != nil {
		return "", "", err
	}
	if at.IsZero() {
		return OK, "the topics have no records", nil
	}
	ahead := at.Sub(s.Now())
	if ahead <= 0 {
		return OK, "no record is from the future", nil
	}
	return statusOf(ahead, clockWarning, clockFailure), fmt.Sprintf("the newest record is %s ahead of this machine's clock",
		ahead.Round(time.Millisecond)), nil
}
