package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// slowConnections is the number of connections that each fault of slow clients opens. Two
// thirds of them send slowly; only these are counted.
const slowConnections = 60

// slowClients opens clients with very slow headers, bodies or reads; other clients must not
// wait. A client that the service disconnects connects again.
func slowClients(x *torture, d drawnFault) string {
	ctx, cancel := context.WithCancel(x.t.Context())
	defer cancel()
	hit := x.targets(d)
	open := make([]atomic.Int64, len(hit))
	var wait sync.WaitGroup
	for n := range slowConnections {
		at := n % len(hit)
		wait.Go(func() {
			for ctx.Err() == nil {
				x.slowClient(ctx, hit[at], n/len(hit)%3, &open[at])
				x.sleep(50 * time.Millisecond)
			}
		})
	}
	x.sleep(d.hold)
	why, want := "", int64(slowConnections/len(hit)/3)
	x.becomesTrue(30*time.Second, func(context.Context) bool {
		why = ""
		for n := range hit {
			if now := open[n].Load(); now < want {
				why = fmt.Sprintf("%s has %d slow connections, want %d", hit[n].name, now, want)
			}
		}
		return why == ""
	})
	cancel()
	wait.Wait()
	return why
}

// slowClient is one connection, from its beginning to its end: slow in its headers,
// its body, or its reads. open counts the connections that send slowly.
func (x *torture) slowClient(ctx context.Context, m *member, how int, open *atomic.Int64) {
	conn, err := net.DialTimeout("tcp", m.clients.addr(), time.Second)
	if err != nil {
		return
	}
	ctx, ended := context.WithCancel(ctx)
	defer ended()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	if how == 2 { // sends many requests and reads no answer
		_, _ = io.WriteString(conn, strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n", 60))
		<-ctx.Done()
		return
	}
	text, at := "GET /livez HTTP/1.1\r\nHost: a\r\nX-Slow: "+strings.Repeat("a", 4000), 0
	if how == 1 {
		head := "POST /api/v1/usage/events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + x.tenants[0].key + "\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n"
		text, at = head+"{\"events\":["+strings.Repeat(" ", 3900), len(head)
	}
	if _, err := io.WriteString(conn, text[:at+1]); err != nil {
		return
	}
	open.Add(1)
	var wait sync.WaitGroup
	wait.Go(func() { // until the service ends it
		defer ended()
		defer open.Add(-1)
		_, _ = io.Copy(io.Discard, conn)
	})
	for at++; at < len(text) && ctx.Err() == nil; at++ {
		if _, err := io.WriteString(conn, text[at:at+1]); err != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	ended()
	wait.Wait()
}
