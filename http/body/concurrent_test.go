package body

import (
	"bytes"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http/admission"
)

// A decompressor that met a corrupt body serves one later body at a time: bodies of two tenants that arrive side by
// side do not mix.
func TestP9_CorruptBodiesMixNoLaterOnes(t *testing.T) {
	first, second := []byte(strings.Repeat("first tenant ", 9000)), []byte(strings.Repeat("the second one ", 9000))
	for name, corrupt := range corruptBodies() {
		coding, _, _ := strings.Cut(name, ",")
		one, two := compressed(coding, first), compressed(coding, second)
		var kept unpackers
		for round := range 20 {
			if _, err := unpack(&kept, coding, bytes.NewReader(corrupt)); err == nil {
				t.Fatalf("%s: the corrupt body is accepted", name)
			}
			sent, send := io.Pipe()
			got := make(chan string, 1)
			go func() {
				body, err := unpack(&kept, coding, sent)
				_ = sent.Close() // so that no write waits for a reader that has failed
				got <- fmt.Sprint(bytes.Equal(body, first), err)
			}()
			_, _ = send.Write(one[:len(one)/2]) // it is read before Write returns
			if body, err := unpack(&kept, coding, bytes.NewReader(two)); err != nil || !bytes.Equal(body, second) {
				t.Fatalf("%s, round %d: the second body is %d bytes, %v; want the %d sent", name, round, len(body), err, len(second))
			}
			_, _ = send.Write(one[len(one)/2:])
			_ = send.Close()
			if text := <-got; text != "true <nil>" {
				t.Fatalf("%s, round %d: the first body is as it was sent: %s", name, round, text)
			}
		}
	}
}

// corruptBodies lists bodies that cannot be decompressed, by coding and fault.
func corruptBodies() map[string][]byte {
	bodies := map[string][]byte{}
	for _, coding := range []string{"gzip", "zstd"} {
		whole := compressed(coding, bytes.Repeat([]byte("abcdefghij"), 5000))
		bodies[coding+", no header"] = []byte("not compressed")
		bodies[coding+", cut short"] = whole[:len(whole)/2]
		bodies[coding+", wrong checksum"] = append(bytes.Clone(whole[:len(whole)-6]), "wrong!"...)
		bodies[coding+", too large"] = compressed(coding, make([]byte, 1<<20))
	}
	return bodies
}

func compressed(coding string, plain []byte) []byte {
	g, z := packed(plain)
	if coding == "gzip" {
		return g
	}
	return z
}

// unpack reads a body whose limit is 256 KiB.
func unpack(kept *unpackers, coding string, sent io.Reader) ([]byte, error) {
	r := httptest.NewRequest("POST", "/", sent)
	r.Header.Set("Content-Encoding", coding)
	r.ContentLength = -1
	return kept.read(r.Body, r, 256<<10, &admission.Charge{})
}
