package relay

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// slowAnswers is a pool whose answers take a moment, and notes when the last statement was sent.
type slowAnswers struct {
	Pool
	sent time.Time
}

func (p *slowAnswers) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.sent = time.Now()
	defer time.Sleep(10 * time.Millisecond)
	return p.Pool.Query(ctx, sql, args...)
}

// A lease counts from before its request: the database counts it from a moment between the request and the answer, so
// that a lease counted from a late answer is used after another relay has acquired it.
func TestP2_ALeaseCountsFromItsRequest(t *testing.T) {
	s, _ := openSubscriber(t)
	slow := &slowAnswers{Pool: s.Pool}
	s.Pool = slow
	for name, request := range map[string]func(context.Context) error{
		"renewed": s.leases.renew,
		"acquired": func(ctx context.Context) error {
			for _, l := range s.held.list() {
				s.held.forget(l.partition, l.fence)
			}
			if _, err := s.Pool.Exec(ctx, `UPDATE relay_cursors SET owner = NULL`); err != nil {
				return err
			}
			return s.leases.acquire(ctx, 32)
		},
	} {
		if err := request(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(s.held.list()); n != 32 {
			t.Fatalf("%s: %d partitions are held", name, n)
		}
		for _, p := range s.held.by {
			if p.renewed.After(slow.sent) {
				t.Errorf("%s: the lease of partition %d counts from %s after its request", name, p.partition, p.renewed.Sub(slow.sent))
				break
			}
		}
	}
}
