package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// message is a prepared request with its header. Between two sends only the key and the
// event ids in it change.
type message struct {
	what   string
	size   int
	raw    []byte
	key    []byte // the key's place in raw, with room for the longest
	ids    []int  // offset of each event's number in raw
	refs   []int  // offset of the number of each correction's target
	behind int    // by how many messages of the client the targets precede their corrections
	count  int    // events sent so far
	given  bool   // the number is count, the same at all places: that of another message
	status int    // the expected status, and the beginning of the expected body
	expect []byte
}

const idDigits = 10

// newMessage writes a request with room for the longest key: blanks at the end of a
// header's value are ignored (RFC 9110, 5.5).
func newMessage(base string, t *target, method, path, body string) (*message, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("invalid service address %q: expected e.g. http://host:port", base)
	}
	longest := 0
	for i := range t.tenants {
		longest = max(longest, len(t.tenants[i].secret))
	}
	head := fmt.Sprintf("%s %s/api/v1%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer ", method, u.Path, path, u.Host)
	rest := "\r\n\r\n"
	if body != "" {
		rest = fmt.Sprintf("\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	}
	raw := []byte(head + strings.Repeat(" ", longest) + rest + body)
	return &message{what: method + " " + path, size: 1, raw: raw, key: raw[len(head) : len(head)+longest], status: 200}, nil
}

// newBatch makes events like those in the API's documentation, with one short member of metadata.
// No two batches share the prefix of their event ids.
func newBatch(base string, t *target, size int, now time.Time) (*message, error) {
	var body bytes.Buffer
	var ids []int
	body.WriteString(`{"events":[`)
	prefix := strings.ToLower(rand.Text()[:12])
	at := now.UTC().Format("2006-01-02T15:04:05.000000Z")
	for i := range size {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"eventId":"%s-`, prefix)
		ids = append(ids, body.Len())
		fmt.Fprintf(&body, `%0*d","feature":"%s","amount":%d,"timestamp":"%s","metadata":{"region":"eu-1"}}`, idDigits, 0, t.feature, i%9+1,
			at)
	}
	body.WriteString(`]}`)
	m, err := newMessage(base, t, "POST", "/usage/events", body.String())
	if err != nil {
		return nil, err
	}
	m.size, m.status, m.expect = size, 202, fmt.Appendf(nil, `{"accepted":%d,"duplicates":0,`, size)
	for _, id := range ids {
		m.ids = append(m.ids, len(m.raw)-body.Len()+id)
	}
	return m, nil
}

// correctedShare is the share of corrections in a batch of newCorrectedBatch.
const correctedShare = 0.3

// newCorrectedBatch is newBatch with corrections at the end: each corrects an event of the client's last batch of the same tenant.
func newCorrectedBatch(base string, t *target, size int, now time.Time) (*message, error) {
	corrections := int(float64(size) * correctedShare)
	m, err := newBatch(base, t, size-corrections, now)
	if err != nil {
		return nil, err
	}
	head, body, _ := bytes.Cut(m.raw, []byte("\r\n\r\n"))
	all := bytes.NewBuffer(bytes.TrimSuffix(slices.Clone(body), []byte("]}")))
	at := now.UTC().Format("2006-01-02T15:04:05.000000Z")
	prefix := string(body[len(`{"events":[{"eventId":"`):][:12])
	var ids, refs []int
	for i := range corrections {
		fmt.Fprintf(all, `,{"type":"correction","eventId":"%s-`, prefix)
		ids = append(ids, all.Len())
		fmt.Fprintf(all, `%0*d","correctionRef":"%s-`, idDigits, 0, prefix)
		refs = append(refs, all.Len())
		fmt.Fprintf(all, `%0*d","feature":"%s","amount":%d,"timestamp":"%s"}`, idDigits, 0, t.feature, i%5+1, at)
	}
	all.WriteString(`]}`)
	corrected, err := newMessage(base, t, "POST", "/usage/events", all.String())
	if err != nil {
		return nil, err
	}
	corrected.size, corrected.status, corrected.expect = size, 202, fmt.Appendf(nil, `{"accepted":%d,"duplicates":0,`, size)
	start := len(corrected.raw) - all.Len()
	for _, id := range m.ids {
		corrected.ids = append(corrected.ids, id-len(head)-len("\r\n\r\n")+start)
	}
	for i := range corrections {
		corrected.ids, corrected.refs = append(corrected.ids, start+ids[i]), append(corrected.refs, start+refs[i])
	}
	corrected.behind = len(t.tenants)
	return corrected, nil
}

// newCheck makes an entitlement check of one or more questions, all about the load's
// feature, each with another amount.
func newCheck(base string, t *target, questions int) (*message, error) {
	if questions <= 1 {
		m, err := newMessage(base, t, "GET", "/entitlements/"+t.feature+"/check", "")
		if err == nil {
			m.expect = []byte(`{"allowed":`)
		}
		return m, err
	}
	var list []string
	for i := range questions {
		list = append(list, fmt.Sprintf(`{"feature":"%s","amount":%d}`, t.feature, i+1))
	}
	m, err := newMessage(base, t, "POST", "/entitlements/check", `{"features":[`+strings.Join(list, ",")+`]}`)
	if err == nil {
		m.size, m.expect = questions, []byte(`{"data":[`)
	}
	return m, err
}

// setTenant sets the tenant's key.
func (m *message) setTenant(t *tenant) {
	for i := copy(m.key, t.secret); i < len(m.key); i++ {
		m.key[i] = ' '
	}
}

// next returns the request with new ids.
func (m *message) next() []byte {
	for _, at := range m.ids {
		if !m.given {
			m.count++
		}
		putDigits(m.raw[at:at+idDigits], m.count)
	}
	before := m.count - len(m.ids) // events sent in earlier messages
	if back := m.behind * len(m.ids); before >= back {
		before -= back
	}
	for i, at := range m.refs {
		putDigits(m.raw[at:at+idDigits], before+i+1)
	}
	return m.raw
}

func putDigits(dst []byte, n int) {
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
}
