package http_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store/pushes"
	"github.com/meterplex/meterplex/infra/stripe"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/stripetest"
)

// billedService is a service whose pushes reach a Stripe that fails on demand. Its pushes reach the database by a proxy that cuts
// connections at COMMIT.
type billedService struct {
	*testService
	stripe   *stripetest.Server
	provider *hookedProvider
	cutter   *localtest.Cutter
	proxied  *pgxpool.Pool
	pushing  *billing.Pushes
	tenants  []*account // the customers cus_0, cus_1 …
	stepping func(step string)
}

// hookedProvider calls a hook before each attempt.
type hookedProvider struct {
	billing.Provider
	sending func()
}

func (p *hookedProvider) Send(ctx context.Context, due push.Push, of events.TracedEvent) push.Result {
	p.sending()
	return p.Provider.Send(ctx, due, of)
}

const stripeCanary = "sk_test_CanaryCanaryCanary"

func newBilledService(t *testing.T, tenants int) *billedService {
	b := &billedService{testService: newTestService(t), stepping: func(string) {}}
	b.stripe = stripetest.New(stripeCanary, time.Now().UTC())
	b.stripe.AddMeter(stripetest.Meter{Event: "calls_meter"})
	provider := stripe.New(stripeCanary, b.stripe.URL, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { b.stripe.Close(); provider.Close() })
	b.provider = &hookedProvider{provider, func() {}}
	cutter, pool, cut := b.throughCutter(t, 1)
	b.cutter, b.proxied = cutter, pool
	b.pushing = b.pushes(b.provider)
	b.pushing.Store = &pushes.Pushes{Store: cut}
	b.catalogue()
	b.want(200, call{"PUT", "/api/v1/features/api_calls", bootstrap, nil, `{"name":"Calls","type":"QUOTA","billingEvent":"calls_meter"}`})
	for i := range tenants {
		customer := fmt.Sprint("cus_", i)
		b.stripe.AddCustomer(customer)
		b.tenants = append(b.tenants, b.newAccount(customer))
		b.want(200, call{"PUT", "/api/v1/tenants/" + b.tenants[i].id + "/billing", bootstrap, nil,
			fmt.Sprintf(`{"provider":"stripe","customer":%q}`, customer)})
	}
	return b
}

// cut drops the next COMMIT of a push, or its answer.
func (b *billedService) cut(lost *atomic.Int32) {
	b.Helper()
	b.cutter.Answer.Store(0) // one of an attempt that did not commit
	b.cutter.Request.Store(0)
	b.must(postgres.InTx(context.Background(), b.proxied, func(tx pgx.Tx) error { // the proxy knows COMMIT by its first one in a session
		_, err := tx.Exec(context.Background(), `SELECT 1`)
		return err
	}))
	lost.Store(1)
}

// run runs the sagas of pushes that are due.
func (b *billedService) run() {
	b.Helper()
	kinds := []commands.SagaKind{b.pushing.PushKind(), b.pushing.CompareKind()}
	for i, k := range kinds {
		kinds[i].Run = func(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
			b.stepping(s.Step)
			return k.Run(ctx, s)
		}
	}
	for b.runStep(kinds, func(error) {}) != nil {
	}
}

// again lets all waits and leases end, and runs what is due.
func (b *billedService) again() {
	b.Helper()
	b.exec(`UPDATE pushes SET next_at = now() WHERE next_at IS NOT NULL`)
	b.due()
	b.run()
}

// settle repeats until all pushes are delivered: an operator retries those that failed.
func (b *billedService) settle() {
	b.Helper()
	for round := 0; ; round++ {
		b.again()
		failed := b.listedPushes("?state=FAILED", "id")
		for _, id := range failed {
			b.want(200, call{"POST", "/api/v1/pushes/" + id + "/retry", bootstrap, nil, `{"reason":"test"}`})
		}
		if len(failed) == 0 && len(b.listedPushes("?state=UNKNOWN")) == 0 && len(b.listedPushes("?state=PENDING")) == 0 && b.open() == 0 {
			return
		}
		if round == 100 {
			b.Fatalf("pushes stay open: %v", b.listedPushes("", "key", "state", "attempts", "lastCode", "lastError"))
		}
	}
}

// open returns the number of sagas that have not ended.
func (b *billedService) open() (n int) {
	b.Helper()
	b.must(b.pool.QueryRow(b.Context(), `SELECT count(*) FROM sagas WHERE ended_at IS NULL AND kind = $1`, billing.SagaBillingPush).
		Scan(&n))
	return n
}

// check requires for each customer that Stripe's sum is what was delivered and what is billable, that each delivery is one event, and that
// nothing holds the key.
func (b *billedService) check(what string) {
	b.Helper()
	key, _ := lastMonth()
	for i, a := range b.tenants {
		delivered, billable := new(big.Int), new(big.Int)
		for _, amount := range b.listedPushes("?limit=100&state=DELIVERED&tenantId="+a.id, "amount") {
			delivered.Add(delivered, decimal(amount))
		}
		for _, amount := range b.lines(periodsOf(a)+"/"+key, "billable") {
			billable.Add(billable, decimal(amount))
		}
		if sum := b.stripe.Sum(fmt.Sprint("cus_", i), "calls_meter"); sum.Cmp(delivered) != 0 || sum.Cmp(billable) != 0 {
			b.Errorf("%s: cus_%d: Stripe counts %s, %s was delivered, %s is billable: %v", what, i, sum, delivered, billable,
				b.listedPushes("?tenantId="+a.id, "key", "amount", "state"))
		}
	}
	var pushes, recorded, shown int
	b.must(b.pool.QueryRow(b.Context(), `SELECT (SELECT count(*) FROM pushes WHERE state = 'DELIVERED'), (SELECT count(*)
		FROM event_log_rows WHERE subject = 76),
 (SELECT count(*) FROM pushes p WHERE p::text LIKE '%Canary%') + (SELECT count(*) FROM sagas s
 WHERE s::text LIKE '%Canary%') + (SELECT count(*) FROM event_log_rows e WHERE e.body::text LIKE '%Canary%')`).Scan(&pushes, &recorded,
		&shown))
	b.same(what+": deliveries in the log", recorded, pushes)
	b.same(what+": rows with the secret key", shown, 0)
}

func decimal(text string) *big.Int {
	n, _ := new(big.Int).SetString(text, 10)
	return n
}

// P8: lost, cut and refused answers, statuses 429 and 5xx, and lost COMMITs: Stripe's sum is what was delivered and what is billable, for
// each customer.
func TestP8_StripeCountsEachAmountOnceWhateverFails(t *testing.T) {
	b := newBilledService(t, 2)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	b.stripe.Draw(func() stripetest.Fault {
		fault := stripetest.Fault(rng.IntN(int(stripetest.Faults)))
		if fault == stripetest.FailSaved || rng.IntN(3) == 0 { // the saved failure lasts a day: below
			return stripetest.None
		}
		return fault
	})
	cut := func(string) {
		if rng.IntN(4) == 0 {
			b.cut([]*atomic.Int32{&b.cutter.Answer, &b.cutter.Request}[rng.IntN(2)])
		}
	}
	b.stepping, b.provider.sending = cut, func() { cut("") }
	for i, a := range b.tenants {
		b.accept(a, old("one", 10+i), old("two", 5), old("three", 100))
		b.closed(a)
	}
	b.settle()
	b.check("after the close")
	for _, a := range b.tenants {
		b.accept(a, correction("fix", "one", 3), retraction("undo", "two"))
		b.fold()
		b.approve(a)
	}
	b.settle()
	b.check("after adjustments")
	for _, a := range b.tenants {
		b.accept(a, correction("again", "three", 250))
		b.fold()
		b.approve(a)
	}
	b.run() // some attempts, and the period is reopened
	key, _ := lastMonth()
	for _, a := range b.tenants {
		b.want(200, call{"POST", periodsOf(a) + "/" + key + "/reopen", bootstrap, nil, `{"reason":"test"}`})
		b.closed(a)
	}
	b.settle()
	b.check("after the second close")
	if b.cutter.Reached.Load() == 0 {
		t.Error("no COMMIT was cut")
	}
}
