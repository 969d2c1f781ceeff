package metering

import (
	"encoding/hex"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// ConflictOf makes the event that records a conflict, once for each eventId and
// hash. The log calls it under the head's lock, where it is certain which event was
// first, and sets the event's id.
func ConflictOf(p *events.Pending, first events.Position, firstHash []byte) events.Pending {
	eventID := p.DedupeKey[len(events.KeyUsage("")):]
	hash := codec.PayloadHash(p)
	sent := p.Sent
	if sent == nil {
		sent = codec.PayloadOf(p)
	}
	payload, err := codec.EncodePayload(events.UsageConflicted, events.Conflicted{
		EventID: eventID, RawPosition: first.Number,
		FirstHash: hashText(firstHash), ConflictHash: hashText(hash), Payload: sent,
	})
	if err != nil {
		panic("metering: a canonical payload is valid JSON: " + err.Error())
	}
	return events.Pending{
		Subject: events.UsageConflicted, TenantID: p.TenantID, DedupeKey: events.KeyConflict(eventID, hash),
		CorrelationID: p.CorrelationID, Actor: p.Actor, OccurredAt: p.OccurredAt, Payload: payload, Replay: p.Replay,
		Residency: p.Residency,
	}
}

// hashText returns the SHA-256 of a stored hash in hex, without the byte for the
// version of the canonical form.
func hashText(hash []byte) string {
	if len(hash) == 0 {
		return ""
	}
	return hex.EncodeToString(hash[1:])
}
