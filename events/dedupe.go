package events

import (
	"encoding/hex"
	"strconv"

	"github.com/google/uuid"
)

// Dedupe keys are unique in a tenant. Each kind has a prefix of its own, so that
// no producer's id can ever meet one of ours.

// KeyUsage is the key of a producer's event.
func KeyUsage(eventID string) string { return "u/" + eventID }

// KeyValidated lets a recorded position be validated once ever.
func KeyValidated(raw int64) string { return "v/" + strconv.FormatInt(raw, 10) }

// KeyRejected lets an attempt at a recorded position be rejected once.
func KeyRejected(raw int64, attempt int) string {
	return "x/" + strconv.FormatInt(raw, 10) + "/" + strconv.Itoa(attempt)
}

// KeyConflict lets a conflict be recorded once for each eventId and hash.
func KeyConflict(eventID string, hash []byte) string {
	return "k/" + eventID + "/" + hex.EncodeToString(hash)
}

// KeyRetry lets the n-th retry of a dead letter happen once.
func KeyRetry(deadLetter uuid.UUID, n int) string {
	return "r/" + deadLetter.String() + "/" + strconv.Itoa(n)
}

// KeyCommand is the key of a command that came with an Idempotency-Key.
func KeyCommand(idempotencyKey string) string { return "c/" + idempotencyKey }

// KeyEvent is the key of all else: the event's own id.
func KeyEvent(id uuid.UUID) string { return "e/" + id.String() }

// KeyFailedAgain lets the n-th retry of a dead letter fail once.
func KeyFailedAgain(deadLetter uuid.UUID, n int) string {
	return KeyRetry(deadLetter, n) + "/failed"
}

// KeyClosed lets a dead letter be resolved or discarded once.
func KeyClosed(deadLetter uuid.UUID) string { return "r/" + deadLetter.String() + "/closed" }
