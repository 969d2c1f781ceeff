package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/events"
)

// AdmittedOf reads the payload of UsageAdmitted. Its admission is empty if the payload is that of recorded usage. It may
// share the payload's memory.
func AdmittedOf(payload []byte) (events.Admitted, error) {
	if a, ok := parseAdmitted(payload); ok {
		return a, nil
	}
	var a events.Admitted
	if err := json.Unmarshal(payload, &a); err != nil {
		return a, fmt.Errorf("decoding admitted usage: %w", err)
	}
	return a, nil
}

// parseAdmitted reads admitted usage only in the exact form of AdmittedJSON; ok is false for any other form.
func parseAdmitted(payload []byte) (a events.Admitted, ok bool) {
	r := payloadReader{rest: payload}
	r.skip(`{"eventId":"`)
	a.EventID = string(r.text())
	r.skip(`,"feature":"`)
	a.Feature = string(r.text())
	r.skip(`,"amount":`)
	a.Amount = r.number(64)
	r.skip(`,"timestamp":"`)
	a.Timestamp = r.time()
	if r.skipIf(`,"metadata":`) {
		a.Metadata = r.object()
	}
	r.skip(`,"type":"`)
	a.Type = r.known("usage")
	if r.skipIf(`,"source":"`) {
		a.Source = string(r.text())
	}
	g := &a.Admitted
	r.skip(`,"admitted":{"by":"`)
	g.By = r.known(events.ByConsume, events.ByEnforce, events.ByCommit)
	r.skip(`,"subscriptionId":"`)
	g.SubscriptionID = r.id()
	r.skip(`,"featureType":"`)
	g.FeatureType = r.known("QUOTA", "METERED")
	r.skip(`,"periodKey":"`)
	g.PeriodKey = string(r.text())
	r.skip(`,"limit":`)
	if r.skipIf("null") {
	} else {
		limit := r.number(64)
		g.Limit = &limit
	}
	r.skip(`,"used":`)
	g.Used = r.sum()
	r.skip(`,"held":`)
	g.Held = r.sum()
	if g.By == events.ByCommit {
		r.skip(`,"reservationId":"`)
		g.ReservationID = string(r.text())
		r.skip(`,"heldAmount":`)
		g.HeldAmount = r.number(64)
		if r.skipIf(`,"overage":"`) {
			g.Overage = r.known(events.OverageRecord)
		}
	}
	r.skip(`}}`)
	return a, !r.bad && len(r.rest) == 0
}

// sum reads null, or digits of any number.
func (r *payloadReader) sum() *json.Number {
	if r.skipIf("null") {
		return nil
	}
	n := 0
	for n < len(r.rest) && r.rest[n] >= '0' && r.rest[n] <= '9' {
		n++
	}
	if n == 0 || n > 1 && r.rest[0] == '0' {
		r.bad = true
		return nil
	}
	digits := json.Number(r.rest[:n])
	r.rest = r.rest[n:]
	return &digits
}

// AdmittedJSON writes admitted usage as json.Marshal does. Its metadata is canonical JSON.
func AdmittedJSON(a *events.Admitted) ([]byte, error) {
	year := a.Timestamp.Year()
	if year < 0 || year > 9999 || a.Timestamp.Location() != time.UTC || bytes.ContainsAny(a.Metadata, "<>&\u2028\u2029") {
		return json.Marshal(a)
	}
	dst := make([]byte, 0, 320+len(a.EventID)+len(a.Metadata)+len(a.Source))
	dst = appendJSONText(append(dst, `{"eventId":`...), a.EventID)
	dst = appendJSONText(append(dst, `,"feature":`...), a.Feature)
	dst = strconv.AppendInt(append(dst, `,"amount":`...), a.Amount, 10)
	dst = a.Timestamp.AppendFormat(append(dst, `,"timestamp":"`...), time.RFC3339Nano)
	dst = append(dst, '"')
	if len(a.Metadata) > 0 {
		dst = append(append(dst, `,"metadata":`...), a.Metadata...)
	}
	dst = appendJSONText(append(dst, `,"type":`...), a.Type)
	if a.Source != "" {
		dst = appendJSONText(append(dst, `,"source":`...), a.Source)
	}
	g := &a.Admitted
	dst = appendJSONText(append(dst, `,"admitted":{"by":`...), g.By)
	dst = events.AppendUUID(append(dst, `,"subscriptionId":"`...), g.SubscriptionID)
	dst = appendJSONText(append(dst, `","featureType":`...), g.FeatureType)
	dst = appendJSONText(append(dst, `,"periodKey":`...), g.PeriodKey)
	dst = append(dst, `,"limit":`...)
	if g.Limit == nil {
		dst = append(dst, "null"...)
	} else {
		dst = strconv.AppendInt(dst, *g.Limit, 10)
	}
	dst = appendSum(append(dst, `,"used":`...), g.Used)
	dst = appendSum(append(dst, `,"held":`...), g.Held)
	if g.ReservationID != "" {
		dst = appendJSONText(append(dst, `,"reservationId":`...), g.ReservationID)
	}
	if g.HeldAmount != 0 {
		dst = strconv.AppendInt(append(dst, `,"heldAmount":`...), g.HeldAmount, 10)
	}
	if g.Overage != "" {
		dst = appendJSONText(append(dst, `,"overage":`...), g.Overage)
	}
	return append(dst, "}}"...), nil
}

func appendSum(dst []byte, n *json.Number) []byte {
	if n == nil {
		return append(dst, "null"...)
	}
	return append(dst, *n...)
}
