package events

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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

// KeyRequested lets bulks ask for a retry of a dead letter one at a time: the k-th
// request has this key.
func KeyRequested(deadLetter uuid.UUID, k int) string {
	return "r/" + deadLetter.String() + "/requested/" + strconv.Itoa(k)
}

// KeyParked lets a record that belongs to no event of the log be parked once. Its
// content is a part of it: offsets begin anew where a topic is made anew.
func KeyParked(r *Record) string {
	sum := sha256.Sum256(r.Value)
	return fmt.Sprintf("q/%s/%d/%d/%x", r.Topic.Name(), r.Partition, r.Offset, sum[:8])
}

// KeyClosed lets a dead letter be resolved or discarded once.
func KeyClosed(deadLetter uuid.UUID) string { return "r/" + deadLetter.String() + "/closed" }

// KeyRefused lets an event of a message that came on usage.commands be refused
// once: the inbox of what does not come from the log. A message is told by its id
// and its content, so that neither a producer's clumsy ids nor offsets that begin
// anew make two messages one.
func KeyRefused(messageID string, content [32]byte, index int) string {
	return "i/" + messageID + "/" + hex.EncodeToString(content[:8]) + "/" + strconv.Itoa(index)
}
