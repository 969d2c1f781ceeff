package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/infra/stripe/stripetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// P8: an instance is killed while it waits for Stripe's answer to a push that Stripe has counted. Another instance goes on; Stripe counts the amount once. The secret key is in
// no log and no row. The export of the period has the same bytes after a restart.
func TestP8_StripeCountsOnceThoughTheInstanceIsKilled(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres"
	secret := "sk_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	fake := stripetest.New(secret, time.Now().UTC())
	fake.Real = true
	defer fake.Close()
	fake.AddMeter(stripetest.Meter{Event: "api_calls"})
	fake.AddCustomer("cus_1")
	settings := []string{"METERPLEX_STRIPE_KEY=" + secret, "METERPLEX_STRIPE_URL=" + fake.URL, "METERPLEX_LOG_LEVEL=debug"}
	dies := w.serve("", settings...)
	w.catalogue(dies)
	x := w.createTenants(dies, 1)[0]
	w.ask(w.operator, http.MethodPut, dies, "/api/v1/tenants/"+x.id+"/billing", object{"provider": "stripe", "customer": "cus_1"}, nil, http.StatusOK)
	w.ingest(dies, x, "accepted", events("in-time", 3, "api_calls")...) // 1, 2 and 3
	w.settle(dies, x)
	arrived, release := fake.Hold()
	period := "/api/v1/tenants/" + x.id + "/periods/" + time.Now().UTC().Format("2006-01")
	w.ask(w.operator, http.MethodPost, dies, period+"/close", object{"reason": "a test", "early": true}, nil, http.StatusAccepted)
	<-arrived
	dies.kill()
	release()
	w.endSagaLeases()
	goesOn := w.serve("", settings...)
	var pushes struct {
		Data []struct {
			State    string
			Amount   json.Number
			Attempts int
		}
	}
	within(t, "the push is delivered", func(ctx context.Context) (bool, string) {
		err := w.get(ctx, w.operator, goesOn, "/api/v1/pushes?tenantId="+x.id, &pushes)
		return err == nil && len(pushes.Data) == 1 && pushes.Data[0].State == "DELIVERED", fmt.Sprintf("%+v %v", pushes, err)
	})
	if sum := fake.Sum("cus_1", "api_calls").String(); sum != "6" || pushes.Data[0].Amount != "6" || pushes.Data[0].Attempts != 2 || len(fake.Requests()) != 2 {
		t.Errorf("Stripe counts %s in %d requests; the push is %+v", sum, len(fake.Requests()), pushes.Data[0])
	}
	before := w.exported(goesOn, period)
	goesOn.stop()
	again := w.serve("", settings...)
	if after := w.exported(again, period); after != before {
		t.Errorf("the export was\n%s\nand is after a restart\n%s", before, after)
	}
	again.stop()
	s := &secrets{t, map[string]string{"key of Stripe": secret}, map[string]int64{}}
	s.search("the log", []byte(dies.lastLines(1<<30)+goesOn.lastLines(1<<30)))
	s.search("config print", w.configPrinted(goesOn))
	s.searchDatabase(w)
}

// exported returns the export of a period in both formats.
func (w *deployment) exported(at *instance, period string) (text string) {
	w.t.Helper()
	for _, format := range []string{"json", "csv"} {
		status, body, err := w.call(w.t.Context(), w.operator, http.MethodGet, at.url()+period+"/export?format="+format, nil)
		if err != nil || status != http.StatusOK || len(body) == 0 {
			w.t.Fatalf("the export as %s: %d %s %v", format, status, body, err)
		}
		text += string(body)
	}
	return text
}
