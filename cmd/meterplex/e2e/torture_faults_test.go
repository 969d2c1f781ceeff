package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
)

// member is an instance with the proxies around it.
type member struct {
	*instance
	database, pipe, clients *tortureProxy
}

// hit are the members that a fault is for.
func (x *torture) hit(d drawn) []*member {
	if d.all {
		return x.members
	}
	return []*member{x.members[d.target]}
}

func onDatabase(m manner) func(*torture, drawn) string {
	return func(x *torture, d drawn) string {
		return x.spoil(d, m, func(m *member) *tortureProxy { return m.database })
	}
}

func onPipe(m manner) func(*torture, drawn) string {
	return func(x *torture, d drawn) string {
		return x.spoil(d, m, func(m *member) *tortureProxy { return m.pipe })
	}
}

func onClients(m manner) func(*torture, drawn) string {
	return func(x *torture, d drawn) string {
		return x.spoil(d, m, func(m *member) *tortureProxy { return m.clients })
	}
}

// spoil sets proxies to a manner for a while, and until something has passed.
func (x *torture) spoil(d drawn, m manner, which func(*member) *tortureProxy) string {
	for _, at := range x.hit(d) {
		which(at).set(m)
	}
	x.sleep(d.hold)
	reached := x.soon(30*time.Second, func(context.Context) bool {
		hits := int64(0)
		for _, at := range x.hit(d) {
			hits += which(at).hits.Load()
		}
		return hits > 0
	})
	for _, at := range x.hit(d) {
		which(at).set(passes)
	}
	if !reached {
		return "nothing passed meanwhile"
	}
	return ""
}

func (x *torture) sleep(d time.Duration) {
	select {
	case <-x.t.Context().Done():
	case <-time.After(d):
	}
}

// killed is kill -9 under load.
func killed(x *torture, d drawn) string {
	m := x.members[d.target]
	x.more(1)
	code := m.end(syscall.SIGKILL)
	x.sleep(d.hold)
	x.revive(m)
	if code != -1 {
		return fmt.Sprintf("it had ended by itself with %d", code)
	}
	return ""
}

func allKilled(x *torture, d drawn) string {
	x.more(1)
	x.endAll(syscall.SIGKILL)
	x.sleep(d.hold)
	for _, m := range x.members {
		x.revive(m)
	}
	return ""
}

func (x *torture) endAll(sig syscall.Signal) {
	var wait sync.WaitGroup
	for _, m := range x.members {
		wait.Go(func() {
			if code := m.end(sig); code > 0 {
				x.t.Errorf("%s exited with %d after %s:\n%s", m.name, code, sig, m.lastLines(30))
			}
		})
	}
	wait.Wait()
}

// told is SIGTERM. Where nothing else is wrong the process has to end with 0.
func told(x *torture, d drawn) string {
	m := x.members[d.target]
	x.more(1)
	code := m.end(syscall.SIGTERM)
	if code != 0 && len(x.now.faults) == 1 {
		x.t.Errorf("%s exited with %d after SIGTERM:\n%s", m.name, code, m.lastLines(30))
	}
	x.sleep(d.hold)
	x.revive(m)
	return ""
}

// revive starts an instance again; what is wrong with the database at the moment
// may end it, and then it is tried again.
func (x *torture) revive(m *member) {
	until := time.Now().Add(startTime)
	for !m.alive() {
		err := m.tryStart()
		if err == nil {
			return
		}
		m.kill()
		if time.Now().After(until) {
			x.t.Errorf("%s does not start: %v", m.name, err)
			return
		}
		x.sleep(time.Second)
	}
}

// frozen stops an instance until the others have what it had, and lets it go on:
// an old relay, an old member of groups, transactions of before.
func frozen(x *torture, d drawn) string {
	m := x.members[d.target]
	// All of them relay, and have all groups.
	if !x.soon(time.Minute, func(ctx context.Context) bool { return x.relaying(ctx) == len(x.members) }) {
		return "not all instances relayed"
	}
	m.signal(syscall.SIGSTOP)
	defer m.signal(syscall.SIGCONT)
	x.sleep(d.hold)
	if !x.soon(time.Minute, func(ctx context.Context) bool {
		n := x.world.members(ctx)
		return x.relaying(ctx) == len(x.members)-1 && n == (len(x.members)-1)*len(groups())
	}) {
		return "the others did not take over what it had"
	}
	return ""
}

// relaying counts who has leases.
func (x *torture) relaying(ctx context.Context) (n int) {
	if err := x.sql.QueryRow(ctx, `SELECT count(DISTINCT owner) FROM relay_cursors WHERE lease_until > now()`).Scan(&n); err != nil {
		return -1
	}
	return n
}

// soon says whether something becomes so in time.
func (x *torture) soon(limit time.Duration, so func(ctx context.Context) bool) bool {
	ctx, cancel := context.WithTimeout(x.t.Context(), limit)
	defer cancel()
	for !so(ctx) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	return true
}

// Clients that give up whenever, and come again.
func clientsGoAway(x *torture, d drawn) string {
	rng := rand.New(rand.NewPCG(d.seed, 1))
	from := &source{rng: rng, mix: mix{duplicates: 20, conflicts: 3, rejections: 3, batch: 20}, name: fmt.Sprintf("gone%d", x.now.number)}
	tenant := x.tenants[rng.IntN(len(x.tenants))]
	gone := 0
	for start := time.Now(); time.Since(start) < d.hold && x.t.Context().Err() == nil; {
		c := &client{w: x.world, tenant: tenant, to: x.members[rng.IntN(len(x.members))].clients.url}
		ctx, cancel := context.WithTimeout(x.t.Context(), time.Duration(rng.IntN(15000))*time.Microsecond)
		_, ok := c.sendOnce(ctx, from.batch())
		if !ok && ctx.Err() != nil {
			gone++
		}
		cancel()
		x.sleep(20 * time.Millisecond)
	}
	if gone == 0 {
		return "every client stayed"
	}
	return ""
}

func (p *tortureProxy) url() string { return "http://" + p.addr() }

// Clients whose headers, bodies or reading take for ever; the others must not wait.
func slowClients(x *torture, d drawn) string {
	ctx, cancel := context.WithTimeout(x.t.Context(), d.hold)
	defer cancel()
	var wait sync.WaitGroup
	var mu sync.Mutex
	sent := 0
	for n := range 60 {
		m := x.hit(d)[n%len(x.hit(d))]
		wait.Go(func() {
			conn, err := net.DialTimeout("tcp", m.clients.addr(), time.Second)
			if err != nil {
				return
			}
			defer conn.Close()
			text := []string{
				"GET /livez HTTP/1.1\r\nHost: a\r\nX-Slow: " + strings.Repeat("a", 400),
				"POST /api/v1/usage/events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + x.tenants[0].key + "\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{\"events\":[" + strings.Repeat(" ", 400),
				strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n", 60),
			}[n%3]
			for i := 0; i < len(text) && ctx.Err() == nil; i++ {
				size := 1
				if n%3 == 2 {
					size = len(text) // asks for much, and reads nothing
				} else if n%3 == 1 && i == 0 {
					size = strings.Index(text, "{")
				}
				if _, err := conn.Write([]byte(text[i : i+size])); err != nil {
					return // the service has had enough of it
				}
				i += size - 1
				mu.Lock()
				sent++
				mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
			<-ctx.Done()
		})
	}
	wait.Wait()
	if sent < 60 {
		return "too few connections were slow"
	}
	return ""
}

// Offsets are the groups' only memory in Kafka; the log does not need them.
func offsetsToStart(x *torture, _ drawn) string {
	x.more(50)
	if !x.soon(time.Minute, x.committed) {
		return "the validator's group committed nothing"
	}
	x.endAll(syscall.SIGTERM)
	return x.moved(false)
}

// committed says whether a group has an offset that can go back.
func (x *torture) committed(ctx context.Context) bool {
	c := x.kafka()
	defer c.Close()
	offsets, err := kadm.NewClient(c).FetchOffsets(ctx, x.prefix+"meterplex-usage-validator")
	found := false
	offsets.Each(func(o kadm.OffsetResponse) { found = found || o.At > 0 })
	return err == nil && found
}

func offsetsToEnd(x *torture, _ drawn) string {
	x.more(50)
	x.endAll(syscall.SIGKILL) // with much that they have not committed
	return x.moved(true)
}

func (x *torture) moved(toEnd bool) (why string) {
	if n := x.moveOffsets(toEnd); n == 0 {
		why = "no offset was moved"
	}
	for _, m := range x.members {
		x.revive(m)
	}
	return why
}

// rewound asks for it as an operator does.
func rewound(x *torture, d drawn) string {
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	rng := rand.New(rand.NewPCG(d.seed, 1))
	consumer := []string{"meterplex-usage-validator", "meterplex-usage-aggregator", "meterplex-dead-letter-handler"}[rng.IntN(3)]
	x.more(20)
	for n, ask := range []object{
		{"consumer": consumer, "to": "start", "reason": "torture"},
		{"topic": "usage.raw", "fromTime": time.Now().Add(-time.Minute).UTC().Format(time.RFC3339), "reason": "torture"},
	} {
		path := []string{"/api/v1/replays/rewind", "/api/v1/replays"}[n]
		var answer replayed
		if status, body := x.attempt(ctx, x.operator, "POST", path, ask, &answer, "Idempotency-Key", uuid.NewString()); status != 202 {
			return fmt.Sprintf("%s: %d %s", path, status, body)
		}
		done := x.soon(time.Minute, func(ctx context.Context) bool {
			status, _ := x.attempt(ctx, x.operator, "GET", "/api/v1/replays/"+answer.ID, nil, &answer)
			return status == 200 && answer.State != "RUNNING" && answer.Remaining == 0
		})
		if !done || answer.State != "DONE" {
			return fmt.Sprintf("%s: %+v", path, answer)
		}
	}
	return ""
}
