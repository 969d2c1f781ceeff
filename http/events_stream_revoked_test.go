package http_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestP9_AStreamOfAnotherInstanceEndsWithinASecond revokes a key while another instance
// streams for it. An event recorded a second later is not streamed. The same holds if the
// key's tenant is suspended.
func TestP9_AStreamOfAnotherInstanceEndsWithinASecond(t *testing.T) {
	w, a := newServiceWithAccount(t)
	other := w.secondInstance()
	tenant := "/api/v1/tenants/" + a.id
	for round, end := range []func(id string){
		func(id string) { w.want(204, call{method: "DELETE", path: tenant + "/api-keys/" + id, key: bootstrap}) },
		func(string) { w.want(200, call{"PATCH", tenant, bootstrap, nil, `{"status":"SUSPENDED"}`}) },
		func(id string) {
			w.want(201, call{"POST", tenant + "/api-keys/" + id + "/rotate", bootstrap, nil, `{"overlapSeconds":0}`})
		},
	} {
		w.want(200, call{"PATCH", tenant, bootstrap, nil, `{"status":"ACTIVE"}`})
		key, id := w.key(a.id, nil, "events:read")
		w.eventually(other, key)
		l := other.listen(t.Context(), key, "", "")
		w.ingest(a, batch(event(fmt.Sprint("before-", round), nil)))
		if _, ok := l.next(); !ok {
			t.Fatal("the stream ended before its key")
		}
		// Concurrent requests keep the cached key fresh on the other instance.
		asking, stop := context.WithCancel(t.Context())
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			for ; asking.Err() == nil; time.Sleep(20 * time.Millisecond) {
				other.do(call{method: "GET", path: "/api/v1/events?limit=1", key: key})
			}
		}()
		time.Sleep(250*time.Millisecond + time.Duration(round)*200*time.Millisecond)
		end(id)
		time.Sleep(time.Second)
		late := fmt.Sprint("recorded_late_", round)
		w.rejections(a, late, 1) // appended directly to the log: the key may already be refused
		w.checkStreamEnds(l, late)
		l.body.Close()
		stop()
		<-asked
	}
}

// checkStreamEnds reads a stream to its end and fails if it contains the event, which was recorded a second after its key had ended. In the
// short form the machine may be too busy for that.
func (w *testService) checkStreamEnds(l *listener, late string) {
	w.Helper()
	told, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for data, ok := l.next(); ok; data, ok = l.next() {
			if strings.Contains(data, late) && !testing.Short() {
				told <- data
				return
			}
		}
	}()
	select {
	case data := <-told:
		w.Errorf("a second after its key had ended the stream told %s", data)
	case <-ended:
	case <-time.After(time.Minute):
		w.Errorf("%s: the stream goes on", late)
	}
}

// eventually waits until another instance accepts a key.
func (w *testService) eventually(other *testService, key string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	for other.do(call{method: "GET", path: "/api/v1/events?limit=1", key: key}).status != 200 {
		if ctx.Err() != nil {
			w.Fatal("the key is not accepted")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestP9_AStreamThatFindsNoEventEndsWithItsKey revokes a key while its stream passes a long part of the log without a
// matching event.
func TestP9_AStreamThatFindsNoEventEndsWithItsKey(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.asOwner(`UPDATE log_heads SET position = position + (1::bigint << 40) WHERE partition = $1`, a.partition())
	key, id := w.key(a.id, nil, "events:read")
	var open []*listener
	for _, follow := range []string{"true", "false"} {
		l := w.listen(t.Context(), key, fmt.Sprintf("?subject=meterplex.dead_letters.&follow=%s&after=%d-0", follow, a.partition()), "")
		defer l.body.Close()
		open = append(open, l)
	}
	w.want(204, call{method: "DELETE", path: "/api/v1/tenants/" + a.id + "/api-keys/" + id, key: bootstrap})
	for _, l := range open {
		w.checkStreamEnds(l, "no event")
	}
}
