package domain

import (
	"bytes"
	"fmt"
	"testing"
)

func batchOf(n int, metadata string) []byte {
	var b bytes.Buffer
	b.WriteString(`{"events":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"eventId":"evt_%032x","feature":"api_calls","amount":%d,"timestamp":"2026-05-01T12:%02d:%02d.123456Z"%s}`,
			i*7919, i+1, i/60%60, i%60, metadata)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

func BenchmarkDecodeBatch1000(b *testing.B) {
	for _, c := range []struct{ name, metadata string }{
		{"plain", ""},
		{"metadata", `,"metadata":{"region":"eu-central-1","endpoint":"/v1/\u00fcbersicht","status":200,"tags":["a","b"]}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			body := batchOf(1000, c.metadata)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if items, err := DecodeBatch(body); err != nil || items[999].Err != nil {
					b.Fatal(err, items[999].Err)
				}
			}
			b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func BenchmarkDecodePayload(b *testing.B) {
	items, err := DecodeBatch(batchOf(1, ""))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodePayload(items[0].Event.Payload()); err != nil {
			b.Fatal(err)
		}
	}
}
