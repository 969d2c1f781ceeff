package tour

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// traffic sends usage until ctx ends.
func (t *Tour) traffic(ctx context.Context) {
	t.working.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			batch := make([]map[string]any, 30)
			for i := range batch {
				batch[i] = map[string]any{
					"eventId": "tour-" + strconv.Itoa(n) + "-" + strconv.Itoa(i), "feature": meteredFeature, "amount": sentAmount,
					"timestamp": t.Now().AddDate(0, 0, -31*(i%3)),
				}
			}
			if _, err := t.client(t.tenant.Key).Post(ctx, "/usage/events", "", map[string]any{"events": batch}); err == nil {
				t.sent.Add(int64(len(batch)))
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
}

// readers counts the reads of the figures and holds the first error. A read that a busy machine refuses is
// sent again.
type readers struct {
	count, cut, whole, refused atomic.Int64
	wrong                      atomic.Pointer[error]
}

func (r *readers) failed() error {
	if err := r.wrong.Load(); err != nil {
		return *err
	}
	return nil
}

// read starts four readers that read until ctx ends or one of them fails.
func (t *Tour) read(ctx context.Context) {
	for range 4 {
		t.working.Go(func() {
			for ctx.Err() == nil && t.readers.failed() == nil {
				c := t.client(t.tenant.Key)
				c.RetryFor = 0
				raw, err := c.Get(ctx, "/usage/aggregates", url.Values{"feature": {meteredFeature}})
				switch p := (*client.Problem)(nil); {
				case err == nil:
					err = t.readers.check(raw)
				case errors.As(err, &p) && p.Code == "overloaded":
					t.readers.refused.Add(1)
					err = nil
				}
				if err != nil && ctx.Err() == nil {
					t.readers.wrong.CompareAndSwap(nil, &err)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
}

var errMixture = errors.New("a read saw faulty and fixed figures")

// check checks that all figures come from the same fold.
func (r *readers) check(raw json.RawMessage) error {
	var page struct {
		Data []struct{ Amount, EventCount int64 }
	}
	if err := json.Unmarshal(raw, &page); err != nil {
		return fmt.Errorf("read figures: %w", err)
	}
	cut, whole := 0, 0
	for _, f := range page.Data {
		switch f.Amount {
		case f.EventCount * cutAt:
			cut++
		case f.EventCount * sentAmount:
			whole++
		default:
			return fmt.Errorf("a figure is neither faulty nor fixed: %+v", f)
		}
	}
	if cut > 0 && whole > 0 {
		return fmt.Errorf("%w: %s", errMixture, raw)
	}
	r.count.Add(1)
	if cut > 0 {
		r.cut.Add(1)
	} else if whole > 0 {
		r.whole.Add(1)
	}
	return nil
}
