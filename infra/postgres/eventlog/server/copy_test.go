package server

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// A COPY has the same bytes for any size of its pieces.
func TestRowsComeInPieces(t *testing.T) {
	tenant := uuid.Must(uuid.NewV7())
	for _, count := range []int{1, 2, 1000} {
		rows := make([]Row, count)
		want := bytes.Clone(copySignature)
		for i := range rows {
			p := events.Pending{EventID: tenant, Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: "u/a", Canonical: 1,
				OccurredAt: time.Now(), Payload: fmt.Appendf(nil, `[%d,"f"]`, i)}
			if i == 500 {
				p.Payload = bytes.Repeat([]byte("x"), 2*pieceSize)
			}
			rows[i] = Row{Pending: &p, Position: events.Position{Number: int64(i + 1)}, Recorded: time.Now()}
			want = encodeRow(want, &rows[i])
		}
		want = append(want, 0xff, 0xff)
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "by halves": iotest.HalfReader,
		} {
			got, err := io.ReadAll(wrap(NewRows(rows)))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d rows, %s: %d bytes of %d, %v", count, name, len(got), len(want), err)
			}
		}
	}
}
