package stripe_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/stripe"
	"github.com/meterplex/meterplex/internal/stripetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ billing.Provider = (*stripe.Provider)(nil)

// canary is the secret key of the tests.
const canary = "sk_test_CanaryCanaryCanary0123456789"

// start is the time of the fake's clock at the beginning: November 2026 has ended.
var start = time.Date(2026, 12, 1, 0, 5, 0, 0, time.UTC)

// account starts a Stripe with the meter api_calls and the customer cus_1, and a provider for it.
func account(t testing.TB) (*stripetest.Server, *stripe.Provider) {
	t.Helper()
	s := stripetest.New(canary, start)
	s.AddMeter(stripetest.Meter{Event: "api_calls"})
	s.AddCustomer("cus_1", "cus_2")
	return s, provider(t, s.URL, s.Close, slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func provider(t testing.TB, url string, end func(), logger *slog.Logger) *stripe.Provider {
	p := stripe.New(canary, url, logger)
	t.Cleanup(func() { end(); p.Close() })
	return p
}

// pushOf returns the push number n of November, of an amount.
func pushOf(n int, amount int64) push.Push {
	key := fmt.Sprintf("6f1c2a34-0000-4000-8000-000000000001:api_calls:2026-11:%d", n)
	return push.Push{ID: uuid.New(), Feature: "api_calls", PeriodKey: "2026-11", Snapshot: n, Amount: big.NewInt(amount), Key: key,
		Identifier: fmt.Sprintf("mp_%040x", n),
		Address:    push.Address{Customer: "cus_1", Event: "api_calls"}, Timestamp: time.Date(2026, 11, 30, 23, 59, 59, 0, time.UTC)}
}

// logs returns a logger of all levels, and its text.
func logs() (*slog.Logger, *bytes.Buffer) {
	text := &bytes.Buffer{}
	return slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: slog.LevelDebug - 8})), text
}

// TestTheSecretKeyIsNowhereButInRequests: Stripe's answers, logs, results, errors and the formatted provider do not show the key, also if
// an answer repeats it.
func TestTheSecretKeyIsNowhereButInRequests(t *testing.T) {
	s, _ := account(t)
	s.Key = "another"
	logger, text := logs()
	slogWas := slog.Default()
	slog.SetDefault(logger)
	defer slog.SetDefault(slogWas)
	p := provider(t, s.URL, func() {}, logger)
	seen := []string{fmt.Sprintf("%v %+v %#v", p, p, p)}
	for _, fault := range []stripetest.Fault{stripetest.None, stripetest.Lose, stripetest.Fail, stripetest.Unavailable} {
		s.Next(fault)
		r := p.Send(context.Background(), pushOf(1, 5), events.TracedEvent{})
		if fault == stripetest.None && (r.Outcome != push.KeyRefused ||
			!strings.Contains(r.Reason, "METERPLEX_STRIPE_KEY (status 401): Invalid API Key provided: Bearer ********")) {
			t.Errorf("a wrong key: %+v", r)
		}
		seen = append(seen, fmt.Sprintf("%+v", r))
	}
	_, err := p.Total(context.Background(), "cus_1", "api_calls", start.Add(-time.Hour), start)
	if err == nil || !strings.Contains(err.Error(), "METERPLEX_STRIPE_KEY (status 401): Invalid API Key provided") {
		t.Errorf("a total with a wrong key: %v", err)
	}
	unreachable := provider(t, "http://127.0.0.1:1/"+canary, func() {}, logger)
	seen = append(seen, fmt.Sprintf("%+v", unreachable.Send(context.Background(), pushOf(1, 5), events.TracedEvent{})), err.Error(),
		text.String())
	for _, one := range seen {
		if strings.Contains(one, "Canary") {
			t.Errorf("the key is shown: %s", one)
		}
	}
	if !strings.Contains(text.String(), "stripe: meter event") {
		t.Error("nothing was logged")
	}
}
