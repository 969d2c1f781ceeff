package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// wire encodes an event as docs/reference/log-events.md defines its record, with the vocabulary and the
// residency of its origin.
func wire(partition int16, s *source) ([]byte, error) {
	of, err := s.termOf()
	if err != nil {
		return nil, err
	}
	payload, err := s.payload()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	text := func(v string) string {
		raw, _ := json.Marshal(v) // a string never fails
		return string(raw)
	}
	optional := func(id uuid.UUID) string {
		if id == uuid.Nil {
			return "null"
		}
		return `"` + id.String() + `"`
	}
	via := ""
	if s.via != "" {
		via = `,"via":` + text(s.via)
	}
	at := func(micros int64) string { return moment(micros).Format(time.RFC3339Nano) }
	fmt.Fprintf(&b,
		`{"eventId":"%s","eventType":"%s","eventVersion":%d,"schemaUri":"%s","tenantId":"%s","partition":%d,"position":"%d-%d","epoch":%d`,
		s.id, of.Type, of.Version, of.SchemaURI, tenantText(s.tenant), partition, partition, s.position, s.epoch)
	fmt.Fprintf(&b, `,"correlationId":%s,"causationId":%s,"actor":{"type":%s,"id":%s%s},"occurredAt":"%s","recordedAt":"%s"`,
		optional(s.correlation), optional(s.cause), text(s.actorType), text(s.actor), via, at(s.occurred), at(s.recorded))
	fmt.Fprintf(&b, `,"producedBy":{"service":%s,"instance":%s,"commit":%s},"idempotencyKey":%s,"payload":`,
		text(s.service), text(s.instance), text(s.commit), text(string(s.key)))
	b.Write(payload)
	b.WriteString(`,"metadata":{"retentionClass":` + strconv.Quote(of.Retention) + `,"dataResidency":` + text(s.residency) +
		`,"orderingKey":"` + tenantText(s.tenant) + `"`)
	if len(s.off) > 0 {
		b.WriteString(`,"replay":` + text(string(s.off)))
	}
	b.WriteString("}}")
	return b.Bytes(), nil
}

func tenantText(tenant uuid.UUID) string {
	if tenant == uuid.Nil {
		return "platform"
	}
	return tenant.String()
}
