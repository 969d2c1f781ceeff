package intake

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// DecodeCloudEventBinary reads one CloudEvent in binary mode: the attributes are
// the headers whose names start with ce-, the body is data. Header has the form of
// net/http.
func DecodeCloudEventBinary(header map[string][]string, body []byte) ([]BatchItem, error) {
	return decodeBinary(header, formBinary, "ce-", body)
}

// DecodeCloudEventRecord reads one CloudEvent in binary mode from a Kafka record: the attributes are
// the headers whose names start with ce_, the value is data.
func DecodeCloudEventRecord(headers []events.Header, value []byte) ([]BatchItem, error) {
	header := make(map[string][]string, len(headers))
	for _, h := range headers {
		header[h.Key] = append(header[h.Key], string(h.Value))
	}
	return decodeBinary(header, formRecord, "ce_", value)
}

func decodeBinary(header map[string][]string, as form, prefix string, body []byte) ([]BatchItem, error) {
	e := headerEnvelope(header, as, prefix)
	d := new(decoder)
	settle := func(d *decoder, item *BatchItem) { d.settleCloudEvent(item, &e) }
	if len(bytes.TrimSpace(body)) == 0 {
		return d.single(settle)
	}
	in, fault := strictjson.Open(body)
	if fault != nil {
		return nil, refused(fault)
	}
	d.in, e.data = in, body[in.Pos():]
	return d.single(func(d *decoder, item *BatchItem) {
		if d.in.Value() {
			settle(d, item)
		}
	})
}

// headerEnvelope reads the attributes from headers, in the order of their names, so
// that the same headers give the same fault.
func headerEnvelope(header map[string][]string, as form, prefix string) envelope {
	e := envelope{form: as}
	values := make(map[string][]string, len(header))
	for name, list := range header {
		name = strings.ToLower(name)
		values[name] = append(values[name], list...)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		attribute, isAttribute := strings.CutPrefix(name, prefix)
		switch {
		case isAttribute && (attribute == "datacontenttype" || attribute == "data"):
			e.refuse(attribute, "is no header in binary mode: Content-Type and the body are")
		case name == "content-type":
			e.setHeader("datacontenttype", values[name])
		case isAttribute:
			e.setHeader(attribute, values[name])
		}
	}
	return e
}

func (e *envelope) setHeader(name string, values []string) {
	known := e.known(name)
	if known != nil {
		known.sent = true // also if it is refused
	}
	if len(values) != 1 {
		e.refuse(name, "must be there once")
		return
	}
	chars, ok := []byte(values[0]), true
	if e.form == formBinary && name != "datacontenttype" { // Content-Type and headers of records are not encoded
		chars, ok = headerText(values[0])
	}
	value := text{sent: true, valid: utf8.Valid(chars), chars: chars}
	if !ok || !value.valid {
		e.refuse(name, "is not percent-encoded UTF-8")
		return
	}
	if known == nil {
		e.extend([]byte(name), value)
	} else {
		*known = value
	}
}

// headerText decodes a header's value (CloudEvents HTTP binding, section 3.1.3.2):
// the quotes and backslashes of older senders first, then one round of percent
// decoding.
func headerText(value string) ([]byte, bool) {
	if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
		value = unquoted(value[1 : n-1])
	}
	out := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] != '%' {
			out = append(out, value[i])
			continue
		}
		if i+2 >= len(value) {
			return nil, false
		}
		b, err := strconv.ParseUint(value[i+1:i+3], 16, 8)
		if err != nil {
			return nil, false
		}
		out = append(out, byte(b))
		i += 2
	}
	return out, true
}

func unquoted(s string) string {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		out = append(out, s[i])
	}
	return string(out)
}
