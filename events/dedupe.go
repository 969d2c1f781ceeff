package events

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Dedupe keys are unique in a tenant. Each kind has its own prefix, so a producer's
// id never collides with a key that the service makes.

// KeyUsage is the key of a producer's event.
func KeyUsage(eventID string) string { return "u/" + eventID }

// KeyValidated limits a recorded position to one validation.
func KeyValidated(raw int64) string { return "v/" + strconv.FormatInt(raw, 10) }

// KeyRejected limits each attempt at a recorded position to one rejection.
func KeyRejected(raw int64, attempt int) string {
	return "x/" + strconv.FormatInt(raw, 10) + "/" + strconv.Itoa(attempt)
}

// KeyHold is the key of a client's reservation.
func KeyHold(reservationID string) string { return "h/" + reservationID }

// KeyReservationEnd limits a reservation to one end without usage.
func KeyReservationEnd(reservationID string) string { return "y/" + reservationID }

// KeyConflict limits conflicts to one for each eventId and hash.
func KeyConflict(eventID string, hash []byte) string {
	return "k/" + eventID + "/" + hex.EncodeToString(hash)
}

// KeyRetry makes the n-th retry of a dead letter happen at most once.
func KeyRetry(deadLetter uuid.UUID, n int) string {
	return "r/" + deadLetter.String() + "/" + strconv.Itoa(n)
}

// KeyCommand is the key of a command that came with an Idempotency-Key.
func KeyCommand(idempotencyKey string) string { return "c/" + idempotencyKey }

// IsKeyOfCommand reports whether KeyCommand made a key, which then names the API key of the caller and its Idempotency-Key.
func IsKeyOfCommand(key string) bool { return strings.HasPrefix(key, "c/") }

// KeyEvent is the key of all other events: the event's own id.
func KeyEvent(id uuid.UUID) string { return "e/" + id.String() }

// KeyFailedAgain limits the n-th retry of a dead letter to one failure.
func KeyFailedAgain(deadLetter uuid.UUID, n int) string {
	return KeyRetry(deadLetter, n) + "/failed"
}

// KeyRequested is the key of the k-th request of bulks to retry a dead letter, so
// that bulks request its retries one at a time.
func KeyRequested(deadLetter uuid.UUID, k int) string {
	return "r/" + deadLetter.String() + "/requested/" + strconv.Itoa(k)
}

// KeyClosed makes a dead letter be resolved or discarded at most once.
func KeyClosed(deadLetter uuid.UUID) string { return "r/" + deadLetter.String() + "/closed" }

// KeyRefused limits an event of a message from usage.commands to one refusal. It is
// the inbox for messages that do not come from the log. Id and content together
// identify a message, so two messages stay distinct even if a producer reuses ids or
// the offsets restart.
func KeyRefused(messageID string, content [32]byte, index int) string {
	return "i/" + messageID + "/" + hex.EncodeToString(content[:8]) + "/" + strconv.Itoa(index)
}

// KeyPeriod limits each step of the snapshots of a period to one: the request to close, each part of the figures, the close, the reopening.
func KeyPeriod(periodKey string, snapshot int, step string) string {
	return "p/" + periodKey + "/" + strconv.Itoa(snapshot) + "/" + step
}

// KeyProposal limits the proposals for a line of a closed period to one for each reconciliation: that of a flip, or one of late usage
// behind it.
func KeyProposal(reconciliation, periodKey, feature string, subscription uuid.UUID) string {
	return "j/" + reconciliation + "/" + periodKey + "/" + feature + "/" + subscription.String()
}

// KeyThreshold limits a threshold to one crossing for each feature, period and value. The value is the amount that is reached.
func KeyThreshold(threshold uuid.UUID, feature, periodKey string, value int64) string {
	return "n/" + threshold.String() + "/" + feature + "/" + periodKey + "/" + strconv.FormatInt(value, 10)
}

// KeyPush limits each end of a push to one: delivered, or its n-th failure.
func KeyPush(push uuid.UUID, end string) string { return "b/" + push.String() + "/" + end }

// KeyOffboarding limits each step of an offboarding to one.
func KeyOffboarding(offboarding uuid.UUID, step string) string {
	return "o/" + offboarding.String() + "/" + step
}

// KeyErasure limits each step of an erasure to one.
func KeyErasure(erasure uuid.UUID, step string) string {
	return "z/" + erasure.String() + "/" + step
}
