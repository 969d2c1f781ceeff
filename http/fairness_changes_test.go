package http_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// A tenant's key changes its webhook on 30 connections while its partition is slow. Operators' changes of other partitions are answered.
func TestP9_ATenantsChangesAreNotFeltByOperators(t *testing.T) {
	f := newFairnessFixture(t)
	a := f.a
	for events.PartitionOf(uuid.MustParse(a.id)) == events.PartitionOf(events.Platform) {
		a = f.newAccount("another")
	}
	path := "/api/v1/tenants/" + a.id + "/webhooks"
	hook := f.want(201, call{"POST", path, a.key, nil, `{"url":"https://example.com/x","events":["push.failed"]}`})
	slow, err := f.pool.Begin(t.Context())
	f.must(err)
	_, err = slow.Exec(t.Context(), `SELECT FROM log_heads WHERE partition = $1 FOR UPDATE`, events.PartitionOf(uuid.MustParse(a.id)))
	f.must(err)
	var all sync.WaitGroup
	defer all.Wait()
	var stopped atomic.Bool
	defer func() {
		stopped.Store(true)
		_ = slow.Rollback(context.Background())
	}()
	var refused atomic.Int64
	for range 30 {
		all.Go(func() {
			for !stopped.Load() {
				if got := f.do(call{"PATCH", path + "/" + hook["id"].(string), a.key, nil, `{"status":"ENABLED"}`}); got.status == 503 {
					refused.Add(1)
				}
			}
		})
	}
	f.until("changes are refused", func() bool { return refused.Load() > 30 })
	for n := range 10 {
		f.want(201, call{"PUT", fmt.Sprint("/api/v1/features/f", n), bootstrap, nil, `{"name":"F","type":"BOOLEAN"}`})
	}
}
