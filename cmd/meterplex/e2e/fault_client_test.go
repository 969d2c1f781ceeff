package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// sendAndDisconnect sends a request, in whole or in part, and closes the connection or resets it, as
// a machine without power does. whole reports whether the whole request was written.
func sendAndDisconnect(t *testing.T, rng *rand.Rand, address, key string, batch []event) (whole bool) {
	t.Helper()
	body, err := json.Marshal(object{"events": batch})
	if err != nil {
		t.Error(err)
		return false
	}
	raw := fmt.Appendf(nil, "POST /api/v1/usage/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", address, key, len(body), body)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return false
	}
	defer c.Close()
	if rng.IntN(2) == 0 {
		_ = c.(*net.TCPConn).SetLinger(0) // a reset
	}
	cut := len(raw)
	if rng.IntN(2) == 0 {
		cut = rng.IntN(len(raw))
	}
	if _, err := c.Write(raw[:cut]); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Duration(rng.IntN(6000)) * time.Microsecond)
	if cut == len(raw) && rng.IntN(3) == 0 {
		_, _ = c.Read(make([]byte, 1+rng.IntN(200))) // read a part of the answer
	}
	return cut == len(raw)
}

// P1: clients disconnect at any moment of a request and of its answer. An event of an
// incomplete request is not stored; one of a complete request may be, and a retry counts once.
func TestP1_ClientsDisconnectAtAnyMoment(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	address := strings.TrimPrefix(i.url(), "http://")
	const clients, requests = 8, 40
	partial, batches := map[string]bool{}, 0
	var mu sync.Mutex
	var wait sync.WaitGroup
	for n := range clients {
		wait.Go(func() {
			rng := rand.New(rand.NewPCG(w.seed, uint64(n)))
			x := tenants[n%len(tenants)]
			for m := range requests {
				size := 1 + rng.IntN(12)
				if m%10 == 0 {
					size = 100
				}
				batch := events(fmt.Sprint("gone", n, "-", m), size, "api_calls")
				x.ledger.sending(batch)
				whole := sendAndDisconnect(t, rng, address, x.key, batch)
				mu.Lock()
				batches++
				for _, e := range batch {
					partial[e.EventID] = !whole
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	counts := map[string]int{}
	for _, v := range w.settle(i, tenants...) {
		kind := "whole "
		if partial[v.EventID] {
			kind = "partial "
		}
		counts[kind+v.Status]++
	}
	t.Logf("%d requests: %v", batches, counts)
	if counts["partial duplicate"] > 0 {
		t.Errorf("%d events of incomplete requests were stored", counts["partial duplicate"])
	}
	if counts["partial accepted"] == 0 || counts["whole duplicate"] == 0 {
		t.Error("no request was cut, or no event of a disconnected client was stored")
	}
	w.finish()
}

// P2: sixteen clients send one batch at once, half of them in reverse: 300 duplicates, 100
// conflicts, 100 rejections, 100 new events twice and 300 new ones once. Each id counts once.
func TestP2_OneBatchOfEveryVerdict(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	i := w.serve("")
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	first := events("known", 400, "api_calls")
	w.ingest(i, x, "accepted", first...)
	batch := append([]event{}, first...)
	for n := 300; n < 400; n++ {
		batch[n].Amount += 1000
	}
	batch = append(batch, events("refused", 100, "not.in.the.plan")...)
	fresh := events("new", 400, "api_calls")
	batch = append(append(batch, fresh...), fresh[:100]...)
	rng := rand.New(rand.NewPCG(w.seed, 5))
	rng.Shuffle(len(batch), func(a, b int) { batch[a], batch[b] = batch[b], batch[a] })
	var mu sync.Mutex
	var wait sync.WaitGroup
	total := map[string]int{}
	for n := range 16 {
		wait.Go(func() {
			mine := reversedFor([][]event{batch}, n)[0]
			verdicts := (&client{w: w, tenant: x, to: i.url}).send(t.Context(), mine)
			counts := map[string]int{}
			for _, v := range verdicts {
				counts[v.Status]++
			}
			mu.Lock()
			defer mu.Unlock()
			for status, n := range counts {
				total[status] += n
			}
			if counts["conflict"] != 100 || counts["rejected"] != 100 || counts["accepted"]+counts["duplicate"] != 800 {
				t.Errorf("client %d got the verdicts %v", n, counts)
			}
		})
	}
	wait.Wait()
	if total["accepted"] != 400 || total["duplicate"] != 16*800-400 {
		t.Errorf("all clients together got the verdicts %v", total)
	}
	w.finish()
}
