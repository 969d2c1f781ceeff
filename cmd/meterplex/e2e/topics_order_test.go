package e2e

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// failureCounter is a test that counts its failures instead of reporting them.
type failureCounter struct {
	testing.TB
	faults int
}

func (c *failureCounter) Errorf(string, ...any) { c.faults++ }

// Records out of order are found also after the topics were filled again: only records that
// the relay published behind a loss may come without the event before them.
func TestTopicOrderIsCheckedAfterALoss(t *testing.T) {
	t.Parallel()
	lost := loss{relayed: map[int16]int64{0: 4}, recorded: map[int16]int64{0: 6}}
	for _, c := range []struct {
		name      string
		positions []int64 // each names the one two before it as its predecessor
		loss      loss
		refilled  bool
		faults    int
	}{
		{"as they are", []int64{2, 4, 6, 8}, loss{}, false, 0},
		{"again", []int64{2, 4, 2, 4, 6}, loss{}, false, 0},
		{"one late", []int64{2, 6, 4, 8}, loss{}, false, 2},
		{"the relay continues", []int64{6, 8, 10}, lost, false, 0},
		{"one is missing behind the loss", []int64{6, 10}, lost, false, 1},
		{"one from before the loss", []int64{4, 6, 8}, lost, false, 1},
		{"filled again", []int64{6, 8, 2, 4, 6, 8, 10}, lost, true, 0},
		{"filled again out of order", []int64{6, 8, 4, 2, 6, 8}, lost, true, 1},
		{"out of order behind the loss", []int64{2, 4, 6, 10, 8, 12}, lost, true, 1},
	} {
		response := &failureCounter{TB: t}
		b := &topicReader{w: &deployment{t: response, loss: c.loss, refilled: c.refilled}, seen: map[topicPosition]*firstCopy{}, last: map[string]int64{}, outside: map[topicPosition][sha256.Size]byte{}}
		for _, n := range c.positions {
			at := fmt.Sprint("0-", n)
			b.read(&kgo.Record{Topic: "usage.raw", Key: []byte("t"), Value: []byte(`{"eventId":"e","tenantId":"t","position":"` + at + `"}`), Headers: []kgo.RecordHeader{
				{Key: "mp-position", Value: []byte(at)}, {Key: "mp-event-id", Value: []byte("e")}, {Key: "mp-previous", Value: fmt.Append(nil, n-2)}}})
		}
		if response.faults != c.faults {
			t.Errorf("%s: %d faults were found, want %d", c.name, response.faults, c.faults)
		}
	}
}
