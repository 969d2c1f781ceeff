package relay

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// followed is a tail that notes the fences that it follows.
type followed map[int16]int64

func (f followed) Follow(partition int16, fence int64, _ int32, _ int64) { f[partition] = fence }

func (followed) Take(int16, int64, int64, int64, int) (none []*events.Envelope) { return nil }

// meanwhile is a pool that runs a function before each statement is sent.
type meanwhile struct {
	Pool
	run func()
}

func (p *meanwhile) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.run()
	return p.Pool.Query(ctx, sql, args...)
}

// A head that was requested under an earlier lease starts no tail under the next one: another relay may have withheld events behind it.
func TestP3_AHeadOfAnEarlierLeaseStartsNoTail(t *testing.T) {
	s, pool := openSubscriber(t)
	if _, err := pool.Exec(t.Context(), `UPDATE log_heads h SET timeline = s.timeline, started_at = s.started_at FROM server_life() s`); err != nil {
		t.Fatal(err)
	}
	tail := followed{}
	s.Tail = tail
	const lost = int16(5)
	s.Pool = &meanwhile{Pool: s.Pool, run: func() {
		h := *s.held.by[lost]
		s.held.forget(lost, h.fence)
		h.fence++
		s.held.add([]*holding{&h})
	}}
	if err := s.readEachHead(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := s.held.fences()
	for p, fence := range tail {
		want := held[p]
		if p == lost {
			want = 0
		}
		if fence != want || p != lost && want == 0 {
			t.Errorf("the tail of partition %d follows the lease %d, want %d", p, fence, want)
		}
	}
	if len(tail) != 32 {
		t.Errorf("%d partitions were read", len(tail))
	}
}
