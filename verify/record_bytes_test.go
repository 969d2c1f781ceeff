package verify

import "testing"

// A record of an erased tenant may differ from its event only in the parts that an erasure takes out.
func TestP11_RecordsFromBeforeAnErasure(t *testing.T) {
	const was = `{"eventId":"i","idempotencyKey":"u/a","payload":{"amount":9007199254740993,"metadata":{"user":"ann"},"feature":"f"},` +
		`"metadata":{"retentionClass":"cold"}}`
	for _, c := range []struct {
		erased, was string
		same        bool
	}{
		{`{"eventId":"i","idempotencyKey":"u/a","payload":{"amount":9007199254740993,"feature":"f"},"metadata":{"retentionClass":"cold"}}`,
			was, true},
		{`{"eventId":"i","idempotencyKey":"u/a","payload":{"amount":9007199254740992,"feature":"f"},"metadata":{"retentionClass":"cold"}}`,
			was, false},
		{`{"eventId":"i","idempotencyKey":"u/b","payload":{"amount":9007199254740993,"feature":"f"},"metadata":{"retentionClass":"cold"}}`,
			was, false},
		{`{"eventId":"i","idempotencyKey":"u/a","payload":{"amount":9007199254740993},"metadata":{"retentionClass":"cold"}}`, was, false},
		{
			`{"eventId":"i","idempotencyKey":"u/a","payload":{"amount":9007199254740993,"feature":"f","source":"x"},` +
				`"metadata":{"retentionClass":"cold"}}`, was, false},
		{`{"payload":{"name":"erased","class":"small"}}`, `{"payload":{"name":"Ann","class":"small","externalIds":["crm"]}}`, true},
		{`{"payload":{"name":"Bob","class":"small"}}`, `{"payload":{"name":"Ann","class":"small"}}`, false},
		{`{"payload":{"sourceSubject":"x","reason":"erased","payload":{}}}`,
			`{"payload":{"sourceSubject":"x","reason":"ann","payload":{"id":1}}}`, true},
		{`{"payload":{"sourceSubject":"x","payload":null}}`, `{"payload":{"sourceSubject":"x","payload":["ann"]}}`, true},
		{`{"payload":{"payload":{}}}`, `{"payload":{"payload":{"amount":1}}}`, false},
		{`{"payload":{"sourceSubject":"meterplex.usage.event.recorded.v1","payload":{}}}`,
			`{"payload":{"sourceSubject":"meterplex.usage.event.recorded.v1","payload":{"amount":1}}}`, false},
		{`{"payload":{"sourceSubject":"meterplex.usage.event.recorded.v1","payload":{"amount":1}}}`,
			`{"payload":{"sourceSubject":"meterplex.usage.event.recorded.v1","payload":{"amount":1,"metadata":{"user":"ann"}}}}`, true},
		{`{"idempotencyKey":"k/a/i","payload":{"firstHash":"` + erasedHash + `","payload":{"amount":1}}}`,
			`{"idempotencyKey":"k/a/aa","payload":{"firstHash":"aa","payload":{"amount":1,"metadata":{}}}}`, true},
		{`{"payload":{"samples":[{"eventId":"a"}]}}`, `{"payload":{"samples":[{"eventId":"a","payload":"ann"}]}}`, true},
		{`{"payload":{"samples":[{"eventId":"a"}]}}`, `{"payload":{"samples":[{"eventId":"b"}]}}`, false},
		{`{"payload":{"samples":[]}}`, `{"payload":{"samples":[{"eventId":"b"}]}}`, false},
	} {
		if same := sameButErased([]byte(c.erased), []byte(c.was)); same != c.same {
			t.Errorf("%s of %s: %v", c.erased, c.was, same)
		}
	}
}
