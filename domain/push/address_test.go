package push

import (
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
)

func chargeOf(customer string, amount int64) Charge {
	return Charge{Address{events.ProviderStripe, customer, "calls"}, big.NewInt(amount)}
}

func TestP8_ACreditGoesToWhomIsCharged(t *testing.T) {
	for name, c := range map[string]struct {
		due     *Due
		charged []Charge
		want    []string
	}{
		"the tenant's customer": {due(3, 3, 5, -1), []Charge{chargeOf("cus_1", 5)}, []string{"cus_1 -2 0"}},
		"a former one":          {due(3, 3, 5, 0), []Charge{chargeOf("cus_0", 5)}, []string{"cus_0 -2 1"}},
		"the last one first": {due(1, 1, 9, -1), []Charge{chargeOf("cus_1", 4), chargeOf("cus_0", 5)},
			[]string{"cus_1 -4 0", "cus_0 -4 1"}},
		"nobody above its charge": {due(0, -2, 9, 3), []Charge{chargeOf("cus_3", 4), chargeOf("cus_2", 0),
			chargeOf("cus_0", 5)}, []string{"cus_3 -4 4", "cus_0 -5 5", "cus_1 -2 6"}},
		"who has more credit than charge": {due(0, 0, 5, -1), []Charge{chargeOf("cus_2", -3), chargeOf("cus_0", 8)},
			[]string{"cus_0 -5 0"}},
		"nobody was charged":                     {due(0, -2, 0, -1), nil, []string{"cus_1 -2 1"}},
		"a charge goes to the tenant's customer": {due(9, 9, 5, -1), []Charge{chargeOf("cus_0", 5)}, []string{"cus_1 4 0"}},
		"nothing is due":                         {due(9, 9, 9, -1), []Charge{chargeOf("cus_0", 9)}, nil},
		"15 digits": {due(999_999_999_999_999, 999_999_999_999_999, 0, -1), nil,
			[]string{"cus_1 999999999999999 0"}},
		"16 digits": {due(2_234_567_890_123_456, 2_234_567_890_123_456, 0, -1), nil,
			[]string{"cus_1 999999999999999 0", "cus_1 999999999999999 1", "cus_1 234567890123458 2"}},
		"a credit of 16 digits": {due(0, 0, 1_000_000_000_000_000, 1), []Charge{chargeOf("cus_0", 1_000_000_000_000_000)},
			[]string{"cus_0 -999999999999999 2", "cus_0 -1 3"}},
		"another meter of the tenant's customer ": {due(3, 3, 5, -1),
			[]Charge{{Address{events.ProviderStripe, "cus_1", "old"}, big.NewInt(5)}}, []string{"cus_1 old -2 0"}},
	} {
		var got []string
		for _, p := range Plan(uuid.New, october(1), c.due, c.charged, pushTo, pushNoon) {
			to := p.Customer
			if p.Event != "calls" {
				to += " " + p.Event
			}
			got = append(got, fmt.Sprint(to, " ", p.Amount, " ", p.N))
			if p.Identifier != Identifier(p.Key) || p.Key != Key(pushTenant, "calls", "2026-10", 1, p.N) {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The pushes of an amount are bounded; the last one has the rest.
func TestP8_PushesOfAnAmountAreBounded(t *testing.T) {
	d, sum := due(9, 9, 0, -1), new(big.Int)
	d.Billable = new(big.Int).Exp(big.NewInt(10), big.NewInt(30), nil)
	parts := Plan(uuid.New, october(1), d, nil, pushTo, pushNoon)
	for _, p := range parts {
		sum.Add(sum, p.Amount)
	}
	if len(parts) != maxPushParts || sum.Cmp(d.Billable) != 0 {
		t.Errorf("%d pushes of %d", len(parts), sum)
	}
}

// All parts of a figure's credit count in its period.
func TestP8_PartsOfACreditCountAtOneTime(t *testing.T) {
	parts := Plan(uuid.New, october(2), due(0, 0, 9, -1), []Charge{chargeOf("cus_1", 4), chargeOf("cus_0", 5)}, pushTo, pushNoon)
	if len(parts) != 2 || !parts[0].Timestamp.Equal(parts[1].Timestamp) || parts[0].Timestamp.Month() != 10 {
		t.Errorf("%+v", parts)
	}
}

// For all charges and amounts: the sum of the pushes is the amount that is due, and a credit brings no customer below 0 while another one
// is charged.
func TestP8_CreditsLeaveNobodyBelowZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		net, charged := map[string]int64{}, []Charge(nil)
		for i := range rapid.IntRange(0, 4).Draw(t, "customers") {
			c := chargeOf(fmt.Sprint("cus_", i), rapid.Int64Range(-5, 9).Draw(t, "charge"))
			charged, net[c.Customer] = append(charged, c), c.Amount.Int64()
		}
		billable, pushed := rapid.Int64Range(-9, 20).Draw(t, "billable"), rapid.Int64Range(-9, 40).Draw(t, "pushed")
		var sum int64
		var below []string
		for _, p := range Plan(uuid.New, october(1), due(billable, billable, pushed, -1), charged, pushTo, pushNoon) {
			amount := p.Amount.Int64()
			sum += amount
			if net[p.Customer] += amount; amount < 0 && net[p.Customer] < 0 {
				below = append(below, p.Customer)
			}
		}
		if sum != billable-pushed {
			t.Fatalf("%d is due, %d is pushed", billable-pushed, sum)
		}
		for customer, amount := range net {
			if len(below) > 0 && amount > 0 {
				t.Fatalf("%v are below 0, and %s is charged %d", below, customer, amount)
			}
		}
	})
}

// A credit that was refused goes to another customer only if its own is not charged as much.
func TestP8_ACreditStaysWithItsCharge(t *testing.T) {
	refused := func(amount int64) *Push {
		p := newPush()
		p.Amount, p.State = big.NewInt(amount), StateFailed
		return p
	}
	to := &events.Billing{Provider: events.ProviderStripe, Customer: "cus_2"}
	for name, c := range map[string]struct {
		amount  int64
		charged []Charge
		want    string
	}{
		"a charge":                 {5, []Charge{chargeOf("cus_1", 9)}, "cus_2"},
		"a credit, all charged":    {-5, []Charge{chargeOf("cus_1", 0)}, "cus_1"},
		"a credit, less charged":   {-5, []Charge{chargeOf("cus_1", -1)}, "cus_2"},
		"a credit, others charged": {-5, []Charge{chargeOf("cus_0", 9)}, "cus_2"},
	} {
		p := refused(c.amount)
		if p.Readdress(to, "", c.charged); p.Customer != c.want {
			t.Errorf("%s: %s, want %s", name, p.Customer, c.want)
		}
	}
}

// Credits lessen the charge of their address. Charges that will go to the tenant's customer are left out.
func TestP8_ChargesAreSumsOfWhatStays(t *testing.T) {
	of := func(customer string, amount int64, state string, counted bool) Push {
		p := Push{Address: Address{events.ProviderStripe, customer, "calls"}, Amount: big.NewInt(amount), State: state}
		if counted {
			p.UnknownSince, p.Attempts = &pushNoon, 1
		}
		return p
	}
	var got []string
	for _, c := range ChargesOf([]Push{of("cus_1", 9, StateDelivered, true), of("cus_2", 4, StateUnknown, true),
		of("cus_1", -2, StatePending, false), of("cus_3", 7, StateFailed, false),
		of("cus_3", 5, StatePending, false), of("cus_4", 1, StateFailed, true), of("cus_3", -1, StateFailed, false)}) {
		got = append(got, fmt.Sprint(c.Customer, " ", c.Amount))
	}
	if want := []string{"cus_4 1", "cus_2 4", "cus_1 7", "cus_3 -1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// P8: an attempt after a refusal has another idempotency key, because the provider repeats the refusal for the earlier one. An attempt in
// doubt has the key of the attempt that the provider may have counted. The identifier never changes.
func TestP8_OnlyAnAnswerRenewsTheKeyOfAPush(t *testing.T) {
	const first = ":calls:2026-10:1"
	for name, c := range map[string]struct {
		outcomes []Outcome
		key      string
		state    string
	}{
		"new":                             {nil, first, StatePending},
		"no answer":                       {[]Outcome{Unknown, Unknown}, first, StateUnknown},
		"later":                           {[]Outcome{Later, Later}, first, StatePending},
		"refused":                         {[]Outcome{Refused}, first + ":r1", StateFailed},
		"refused twice":                   {[]Outcome{Refused, Refused}, first + ":r2", StateFailed},
		"the key refused":                 {[]Outcome{KeyRefused}, first + ":r1", StatePending},
		"no answer, then the key refused": {[]Outcome{Unknown, KeyRefused}, first, StateUnknown},
		"no answer, then refused":         {[]Outcome{Unknown, Refused}, first + ":r1", StateFailed},
		"refused, then no answer":         {[]Outcome{Refused, Unknown}, first + ":r1", StateUnknown},
	} {
		p, now := newPush(), pushNoon
		for _, outcome := range c.outcomes {
			if p.State == StateFailed {
				if refusal := p.Retry("r", "a", now); refusal != nil {
					t.Fatalf("%s: %v", name, refusal)
				}
			}
			now = now.Add(time.Hour)
			p.begun(t, now).Answered(Result{Outcome: outcome, Code: "c", Reason: "why"}, p.Attempts, now)
		}
		if p.RequestKey() != pushTenant.String()+c.key || p.Identifier != Identifier(p.Key) || p.State != c.state {
			t.Errorf("%s: the request has the key %s, the push is %+v", name, p.RequestKey(), p)
		}
	}
}

// P8: a refused secret key is no verdict on a push: it is sent again by itself, soon after the key is corrected.
func TestP8_APushWhoseSecretKeyIsRefusedGoesOn(t *testing.T) {
	p, now := newPush(), pushNoon
	for range 20 {
		p.begun(t, now).Answered(Result{Outcome: KeyRefused, Code: "provider_key_refused", Reason: "why"}, p.Attempts, now)
		if p.State != StatePending || p.UnknownSince != nil || p.Failures != 0 || p.LastError != "why" || p.NextAt == nil ||
			p.NextAt.After(now.Add(5*time.Minute)) {
			t.Fatalf("%+v", p)
		}
		now = *p.NextAt
	}
	if p.begun(t, now).Answered(Result{Outcome: Delivered}, p.Attempts, now); p.State != StateDelivered || p.LastError != "" {
		t.Errorf("%+v", p)
	}
}
