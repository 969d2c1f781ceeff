package http_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/infra/stripe/stripetest"
)

// closedBilled is a billed service whose tenants have closed periods with 10 calls each, before any push is sent.
func closedBilled(t *testing.T, tenants int) *billedService {
	b := newBilledService(t, tenants)
	for _, a := range b.tenants {
		b.accept(a, old("one", 10))
		b.closed(a)
	}
	return b
}

// P8: Stripe refuses the secret key of the service. No push fails, no retry is needed: pushes wait with the reason, and go on by themselves after the key is corrected.
func TestP8_ARefusedSecretKeyFailsNoPush(t *testing.T) {
	for name, refuse := range map[string]func(*billedService){
		"another key": func(b *billedService) { b.stripe.Key = "sk_test_rolled" },
		"401":         func(b *billedService) { b.stripe.Draw(func() stripetest.Fault { return stripetest.Unauthorized }) },
		"403":         func(b *billedService) { b.stripe.Draw(func() stripetest.Fault { return stripetest.Forbidden }) },
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			b := closedBilled(t, 3)
			refuse(b)
			for range 4 {
				b.again()
			}
			for _, p := range b.listedPushes("", "state", "lastCode", "lastError") {
				if !strings.HasPrefix(p, "PENDING provider_key_refused Stripe refuses the key of METERPLEX_STRIPE_KEY (status 40") {
					t.Errorf("a push is %s", p)
				}
			}
			var failures int
			b.must(b.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE subject = 77`).Scan(&failures))
			b.same("failures in the log", failures, 0)
			b.same("counted", len(b.stripe.Counted()), 0)
			b.stripe.Key = stripeCanary
			b.stripe.Draw(nil)
			b.again()
			b.same("afterwards", b.listedPushes("", "state", "attempts"), []string{"DELIVERED 5", "DELIVERED 5", "DELIVERED 5"})
			b.check("after the key is corrected")
		})
	}
}

// P8: Stripe refuses a push, and saves the refusal for the idempotency key. A retry succeeds at once when the cause is corrected, also if it changes the body, and
// counts once.
func TestP8_ARetryAfterASavedRefusalIsLookedAtAgain(t *testing.T) {
	for name, correct := range map[string]func(b *billedService, a *account){
		"the customer is created": func(b *billedService, _ *account) { b.stripe.AddCustomer("cus_later") },
		"the customer is another": func(b *billedService, a *account) {
			b.want(200, call{"PUT", "/api/v1/tenants/" + a.id + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_0"}`})
		},
		"the refusal was wrong": func(b *billedService, _ *account) {
			b.stripe.AddCustomer("cus_later")
			b.stripe.Next(stripetest.LoseAfter)
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			b := newBilledService(t, 1)
			a := b.tenants[0]
			b.want(200, call{"PUT", "/api/v1/tenants/" + a.id + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_later"}`})
			b.accept(a, old("one", 10))
			b.closed(a)
			b.run()
			b.same("refused", b.listedPushes("", "state", "attempts", "lastCode"), []string{"FAILED 1 resource_missing"})
			correct(b, a)
			for range 3 {
				for _, id := range b.listedPushes("?state=FAILED", "id") {
					b.want(200, call{"POST", "/api/v1/pushes/" + id + "/retry", bootstrap, nil, `{"reason":"corrected"}`})
				}
				b.again()
			}
			b.same("pushes", b.listedPushes("", "state"), []string{"DELIVERED"})
			b.same("counted", fmt.Sprint(b.stripe.Sum("cus_0", "calls_meter"), " ", b.stripe.Sum("cus_later", "calls_meter")),
				map[bool]string{true: "10 0", false: "0 10"}[name == "the customer is another"])
			identifiers := map[string]bool{}
			for _, e := range b.stripe.Counted() {
				identifiers[e.Identifier] = true
			}
			b.same("counted events and identifiers", []int{len(b.stripe.Counted()), len(identifiers)}, []int{1, 1})
		})
	}
}
