package http_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	nethttp "net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/projections/validate"
)

const (
	linearLimit   = 3000
	linearClients = 32
	linearEach    = 235 // requests of a client in a round of the full form
)

// replacedLog is a log of an instance that ends and starts again.
type replacedLog struct{ atomic.Pointer[eventlog.Log] }

func (l *replacedLog) Admit(tenant uuid.UUID) error { return l.Load().Admit(tenant) }

func (l *replacedLog) Submit(ctx context.Context, tenant uuid.UUID, batch []metering.Submitted) ([]metering.Outcome, error) {
	return l.Load().Submit(ctx, tenant, batch)
}

func (l *replacedLog) Read(ctx context.Context, partition int16, after, upTo int64, limit int) ([]events.Envelope, error) {
	return l.Load().Read(ctx, partition, after, upTo, limit)
}

// linearInstance is an instance with sessions of its own, whose writers can be ended.
type linearInstance struct {
	*testService
	name   string
	checks localtest.Payloads
	owner  string // the database, without the proxy
	writes replacedLog
	cutter *localtest.Cutter
}

func newLinearInstance(t *testing.T, w *testService, name string) *linearInstance {
	t.Helper()
	other := *w
	i := &linearInstance{testService: &other, name: name, checks: localtest.CheckPayloads(t), owner: w.pool.Config().ConnString()}
	cutter, url := localtest.NewCutter(t, i.owner)
	i.cutter = cutter
	config, err := postgres.PoolConfig(postgres.Config{URL: url, ApplicationName: name})
	w.must(err)
	i.pool, err = localtest.KeepPlans(config)
	w.must(err)
	t.Cleanup(i.pool.Close)
	i.restart()
	t.Cleanup(func() { i.writes.Load().Close() })
	i.store = store.New(i.pool, w.log, store.Config{})
	s := i.server()
	s.Quotas.Log = &i.writes
	i.serve(s)
	i.client.Transport.(*nethttp.Transport).MaxIdleConnsPerHost = linearClients
	return i
}

// restart ends the writers, and starts others.
func (i *linearInstance) restart() {
	next, err := eventlog.New(context.Background(), i.pool,
		eventlog.Config{Producer: events.Producer{Service: "meterplex", Instance: i.name, Commit: "0"}, LongestWait: time.Hour,
			Histories: new(validate.HistoryReader), Written: i.checks.Written, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return // its sessions were ended meanwhile; those before go on
	}
	if before := i.writes.Swap(next); before != nil {
		before.Close()
	}
}

// attempt is a request that was sent.
type attempt struct {
	in         *asked
	call, done int64
	out        *told // nil: the answer was lost
}

// history holds the requests and answers of all clients.
type history struct {
	mu       sync.Mutex
	each     int // requests of a client
	began    time.Time
	attempts map[uuid.UUID]*attempt // by the trace by which the event is found
	bodies   map[string]string      // of answers that repetitions get, too
	counts   map[string]int
	faults   []string
}

func (h *history) fault(format string, args ...any) {
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

func (h *history) since() int64 { return time.Since(h.began).Nanoseconds() }

// drawAsked draws a request of a client. Reservations are few at a time, so that clients meet at them.
func drawAsked(r *rand.Rand, client, n int) (in asked, call call) {
	in.id = fmt.Sprint("r", n/2+r.IntN(6))
	kind := crc32.ChecksumIEEE([]byte(in.id))
	held := 1 + int64(kind%40)
	path := reservationsPath + "/" + in.id
	call.method = "POST"
	switch k := r.IntN(20); {
	case k < 6:
		in.kind, in.id, in.event = "consume", "", fmt.Sprintf("%d-%d", client, n-r.IntN(8)/7) // the one before it, one time of eight
		in.amount = 1 + int64(crc32.ChecksumIEEE([]byte(in.event))%9)
		call.path, call.body = "/api/v1/entitlements/api_calls/consume", map[string]any{"eventId": in.event, "amount": in.amount}
	case k < 12:
		in.kind, in.amount = "hold", held
		call.path, call.body = reservationsPath, map[string]any{"reservationId": in.id, "amount": held,
			"ttlSeconds": []int{1, 1, 600}[kind/40%3]}
	case k < 14:
		in.kind = "extend"
		call.path, call.body = path+"/extend", map[string]any{"ttlSeconds": 1 + r.IntN(4)/3*599}
	case k < 18:
		form := r.IntN(4)
		in.kind, in.event, in.overage = "commit", fmt.Sprint(in.id, "-", form), form == 2
		in.amount = []int64{max(1, held/2), held, held + 5, held + 1}[form] // a part, the whole, an overage, too much
		body := map[string]any{"eventId": in.event, "amount": in.amount}
		if in.overage {
			body["overage"] = "record"
		}
		call.path, call.body = path+"/commit", body
	default:
		in.kind = "release"
		call.method, call.path = "DELETE", path
	}
	return in, call
}

// send sends a request, and records its answer. It reports false if the answer was lost.
func (h *history) send(ctx context.Context, i *linearInstance, key string, in asked, c call) bool {
	trace := uuid.Must(uuid.NewRandom())
	var body io.Reader
	if c.body != nil {
		raw, _ := json.Marshal(c.body)
		body = bytes.NewReader(raw)
	}
	request, err := nethttp.NewRequestWithContext(ctx, c.method, i.url+c.path, body)
	if err != nil {
		panic(err)
	}
	request.Header = nethttp.Header{"Authorization": {"Bearer " + key}, "Content-Type": {"application/json"},
		"Traceparent": {"00-" + hex.EncodeToString(trace[:]) + "-00f067aa0ba902b7-01"}}
	if c.body == nil {
		request.Header.Del("Content-Type")
	}
	in.called = time.Now().UnixMicro()
	a := &attempt{in: &in, call: h.since()}
	h.mu.Lock()
	h.attempts[trace] = a
	h.mu.Unlock()
	var got answer
	response, err := i.client.Do(request)
	if err == nil {
		got.status = response.StatusCode
		got.body, err = io.ReadAll(response.Body)
		response.Body.Close()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || got.status == 503 || got.status == 429 {
		h.counts["lost"]++
		return false
	}
	a.done = h.since()
	a.out = h.read(&in, got)
	return true
}

// quotaAnswer has the members of all answers, and of the payloads of their events.
type quotaAnswer struct {
	Code, State, Position string
	Used, Held, Remaining int64
	ExpiresAt             time.Time
	ReservationID         string
	Admitted              struct{ Used, Held int64 }
}

func (a *quotaAnswer) told() *told {
	t := &told{code: a.Code, state: a.State, used: a.Used + a.Admitted.Used, held: a.Held + a.Admitted.Held, until: a.ExpiresAt.UnixMicro()}
	_, number, _ := strings.Cut(a.Position, "-")
	t.position, _ = strconv.ParseInt(number, 10, 64)
	return t
}

// read reads an answer, which a repetition gets byte for byte.
func (h *history) read(in *asked, got answer) *told {
	var a quotaAnswer
	if err := json.Unmarshal(got.body, &a); err != nil || (got.status/100 == 2) != (a.Code == "") {
		h.fault("%+v: %d %s", *in, got.status, got.body)
	}
	if sums := a.Code == "" || a.Code == "quota_exceeded"; sums && a.Remaining != max(0, linearLimit-a.Used-a.Held) {
		h.fault("%+v: %d remain: %s", *in, a.Remaining, got.body)
	}
	h.counts[in.kind+" "+a.Code]++
	if a.Code == "" && in.kind != "hold" && in.kind != "extend" {
		key := in.account + in.key()
		if first, known := h.bodies[key]; known && first != string(got.body) {
			h.fault("%s got %s, then %s", key, first, got.body)
		}
		h.bodies[key] = string(got.body)
	}
	return a.told()
}
