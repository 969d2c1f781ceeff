package bench

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"time"
)

// batch is an ingest request, header and all, of one tenant. Between two sends
// only the event ids in it change.
type batch struct {
	size   int
	raw    []byte
	ids    []int // where each event's number stands in raw
	count  int   // events made so far
	expect []byte
}

const idDigits = 10

// newBatch makes events as the API's documentation shows them, with one short
// member of metadata. Their ids begin with a text that no other batch has.
func newBatch(host string, t *tenant, size int, now time.Time) *batch {
	b := &batch{size: size, expect: fmt.Appendf(nil, `{"accepted":%d,"duplicates":0,`, size)}
	var body bytes.Buffer
	body.WriteString(`{"events":[`)
	prefix := strings.ToLower(rand.Text()[:12])
	at := now.UTC().Format("2006-01-02T15:04:05.000000Z")
	for i := range size {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"eventId":"%s-`, prefix)
		b.ids = append(b.ids, body.Len())
		fmt.Fprintf(&body, `%0*d","feature":"%s","amount":%d,"timestamp":"%s","metadata":{"region":"eu-1"}}`, idDigits, 0, feature, i%9+1, at)
	}
	body.WriteString(`]}`)
	head := fmt.Sprintf("POST /api/v1/usage/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		host, t.secret, body.Len())
	b.raw = append([]byte(head), body.Bytes()...)
	for i := range b.ids {
		b.ids[i] += len(head)
	}
	return b
}

// next gives the request with new ids.
func (b *batch) next() []byte {
	for _, at := range b.ids {
		b.count++
		putDigits(b.raw[at:at+idDigits], b.count)
	}
	return b.raw
}

func putDigits(dst []byte, n int) {
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
}

// batches makes the requests of one client, one for each of the tenants.
func (s *subject) batches(size int, now time.Time) []*batch {
	host := strings.TrimPrefix(s.url, "http://")
	list := make([]*batch, len(s.tenants))
	for i := range s.tenants {
		list[i] = newBatch(host, &s.tenants[i], size, now)
	}
	return list
}
