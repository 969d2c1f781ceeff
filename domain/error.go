// Package domain holds the business rules: it decides on callers' requests, and folds events
// into state. It is pure: it may not use a context, a clock, a database, a network or a random
// source. Time and ids are arguments, so the same input gives the same result on every instance
// and in every replay.
package domain

import (
	"encoding/json"
	"fmt"
)

// Error is a refusal of a caller's input. It never reports a fault of the service.
type Error struct {
	// Code is stable and snake_case; clients branch on it.
	Code string
	// Message explains to a person how to correct the input. It repeats at most 64
	// characters of input, quoted (strictjson.Quote).
	Message string
	// Pointer is the JSON pointer (RFC 6901) of the faulty member in the body, or "".
	Pointer string
	// Quota is the account beside its limit, for quota_exceeded.
	Quota *Quota
	// State is that of the reservation, for reservation_ended.
	State string
	// Current is the present state, for state_changed.
	Current *Current
}

// Current is the state that an action found in place of the state that it was shown. It has the members that the action compares.
type Current struct {
	Matched *int         // dead letters that a filter matches
	Keys    *int64       // keys that differ
	Delta   *json.Number // sum of their differences
	Closed  *int64       // those of the keys that are of closed periods
	ETag    string       // of the difference, or of the entity
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Refuse makes a refusal, with the message in the form of fmt.
func Refuse(code, pointer, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Pointer: pointer}
}
