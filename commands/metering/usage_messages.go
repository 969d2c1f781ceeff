package metering

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// Headers with a producer's id for its message. The default is its topic, partition
// and offset; a pipe without offsets sets HeaderMessageID when it stores the message.
const (
	HeaderMessageID = "mp-message-id"
	headerCloudID   = "ce_id"
	headerCloudFrom = "ce_source"
	// headerCloudSpec marks a CloudEvent in binary mode; ce_id and ce_source alone only name a message.
	headerCloudSpec = "ce_specversion"
	// headerContentType is a CloudEvent's: its structured mode, or the type of data in binary mode.
	headerContentType = "content-type"
)

const (
	// maxMessage is the same bound as for a request's body.
	maxMessage = 4 << 20
	// maxMessageID bounds the id, which becomes a part of a dedupe key.
	maxMessageID = 200
	// maxRefusedCopy is the largest payload that is copied into a refusal.
	maxRefusedCopy = 16 << 10
)

// message is a record of usage.commands.
type message struct {
	*events.Record
	tenant string // as the message names it
	named  string // the same, if that is no tenant
	id     string
	sum    [32]byte // of the value
	trace  uuid.UUID
	single bool // one event, no list
	items  []intake.BatchItem
	parts  []json.RawMessage // the elements, decoded for the first refusal
	bare   bool              // its content is not recorded
}

func newMessage(r *events.Record) *message {
	m := &message{Record: r, sum: sha256.Sum256(r.Value), id: messageID(r)}
	m.tenant = string(r.Header(events.HeaderTenant))
	if m.tenant == "" {
		m.tenant = string(r.Key)
	}
	m.named = printable(m.tenant)
	m.trace, _, _ = events.ParseTraceParent(string(r.Header(events.HeaderTrace)))
	return m
}

// ProducerID returns the id that the producer of a message gave it, "" without one.
func ProducerID(r *events.Record) string {
	id := string(r.Header(HeaderMessageID))
	if id == "" {
		if id = string(r.Header(headerCloudID)); id != "" {
			id = string(r.Header(headerCloudFrom)) + "#" + id
		}
	}
	return id
}

// messageID returns the producer's id of a message, else one made of its offset. The
// content distinguishes two messages with the same id.
func messageID(r *events.Record) string {
	id := ProducerID(r)
	if id == "" && r.Offset >= 0 {
		id = r.Topic.Name() + "/" + strconv.Itoa(int(r.Partition)) + "/" + strconv.FormatInt(r.Offset, 10)
	}
	if len(id) > maxMessageID || id != printable(id) {
		sum := sha256.Sum256([]byte(id))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return id
}

// printable replaces characters that are not allowed in a key or a log line, and cuts
// the text to maxMessageID.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), maxMessageID)]
}

// refuse refuses the message as a whole.
func (m *message) refuse(why *domain.Error) {
	m.items = []intake.BatchItem{{Index: wholeMessage, Err: why}}
}

// wholeMessage is the index of a refusal of a whole message.
const wholeMessage = -1

// decode reads the value as the body of POST /usage/events, or as one event. Any
// content leads to a verdict, so a bad message delays no other.
func (m *message) decode() {
	defer func() {
		if p := recover(); p != nil {
			m.refuse(domain.Refuse("message_unreadable", "", "reading the message failed: %.200v", p))
		}
	}()
	items, err := m.decodeValue()
	if err != nil {
		m.refuse(err)
		return
	}
	for i := range items {
		if e := items[i].Event; e != nil && e.TraceParent == "" {
			e.TraceParent = string(m.Header(events.HeaderTrace))
		}
	}
	m.items = items
}

func (m *message) decodeValue() ([]intake.BatchItem, *domain.Error) {
	if len(m.Value) > maxMessage {
		return nil, domain.Refuse("body_too_large", "", "a message may have at most %d bytes", maxMessage)
	}
	items, err := m.decodeForm()
	if err == nil {
		return items, nil
	}
	fault, ok := err.(*domain.Error)
	if !ok {
		return nil, domain.Refuse("message_unreadable", "", "%.200v", err)
	}
	return nil, fault
}

// decodeForm reads a CloudEvent as the Kafka binding marks it, else plain usage.
func (m *message) decodeForm() ([]intake.BatchItem, error) {
	media, _, _ := mime.ParseMediaType(string(m.Header(headerContentType)))
	switch {
	case media == intake.MediaCloudEventBatch:
		return intake.DecodeCloudEventBatch(m.Value)
	case strings.HasPrefix(media, "application/cloudevents"):
		m.single = true
		return intake.DecodeCloudEvent(m.Value)
	case m.Header(headerCloudSpec) != nil:
		m.single = true
		return intake.DecodeCloudEventRecord(m.Headers, m.Value)
	}
	return m.decodePlain()
}

func (m *message) decodePlain() ([]intake.BatchItem, error) {
	if fault := strictjson.Check(m.Value); fault != nil && fault.Code != "" {
		// In a batch, lone surrogates are only the fault of their event.
		if items, err := intake.DecodeBatch(m.Value); err == nil {
			return items, nil
		}
		return nil, domain.Refuse(fault.Code, "", "%s", fault.Message)
	}
	body := m.Value
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) == nil {
		if _, batch := members["events"]; !batch {
			m.single = true
			body = append(append([]byte(`{"events":[`), body...), "]}"...)
		}
	}
	return intake.DecodeBatch(body)
}

// refusal returns the payload that records the refusal of an item.
func (e *entry) refusal(why *domain.Error) json.RawMessage {
	r := events.RefusedUsage{
		Code: why.Code, Reason: storable(why.Message), Pointer: storable(why.Pointer), EventID: storable(e.item.EventID), MessageID: e.id,
		Index: e.item.Index,
		Topic: events.TopicUsageCommands.Name(), KafkaPartition: e.Partition, KafkaOffset: e.Offset, Tenant: e.named,
		Bytes: len(e.Value), Payload: e.copied(),
	}
	if e.single {
		r.Pointer = strings.TrimPrefix(r.Pointer, "/events/0")
	}
	if e.item.Event != nil {
		r.Feature = e.item.Event.Feature
	}
	body, err := codec.EncodePayload(events.UsageRefused, r)
	if err != nil {
		panic(fmt.Sprintf("metering: a refusal of texts, numbers and checked JSON cannot be written: %v", err))
	}
	return body
}

// storable replaces the one character that the log cannot store. A pointer contains
// it if the name of a message's member does.
func storable(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

// copied returns the refused usage, if the log and its readers can process it.
func (e *entry) copied() json.RawMessage {
	if e.bare {
		return nil
	}
	raw := json.RawMessage(e.Value)
	if e.item.Index != wholeMessage && !e.single {
		if e.parts == nil {
			var body struct{ Events []json.RawMessage }
			if json.Unmarshal(e.Value, &body) != nil { // it was decoded before: a list of CloudEvents
				_ = json.Unmarshal(e.Value, &body.Events)
			}
			e.parts = body.Events
		}
		if e.item.Index >= len(e.parts) {
			return nil
		}
		raw = e.parts[e.item.Index]
	}
	if len(raw) > maxRefusedCopy || strictjson.Check(raw) != nil || bytes.Contains(raw, []byte(`\u0000`)) {
		return nil
	}
	return raw
}
