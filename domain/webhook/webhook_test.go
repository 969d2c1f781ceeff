package webhook

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

var webhookNow = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func TestADeliveryIsRetriedByTheSchedule(t *testing.T) {
	w, d, now := Webhook{}, Delivery{State: DeliveryPending}, webhookNow
	total := time.Duration(0)
	for i, wait := range Retries() {
		attempt, disable := w.Settle(&d, w.URL, Result{Status: 500, Duration: time.Second}, Retries(), now)
		if attempt.N != i+1 || attempt.Error == "" || !attempt.At.Equal(now.Add(-time.Second)) || disable != "" ||
			d.State != DeliveryPending || !d.NextAt.Equal(now.Add(wait)) {
			t.Fatalf("attempt %d: %+v, %q, %+v", i+1, attempt, disable, d)
		}
		now = now.Add(wait)
		total += wait
	}
	if _, disable := w.Settle(&d, w.URL, Result{Error: "x"}, Retries(), now); disable != "" || d.State != DeliveryFailed ||
		d.NextAt != nil || d.EndedAt == nil || d.Sent != 10 {
		t.Errorf("after the last retry: %q, %+v", disable, d)
	}
	if total != 75*time.Hour+35*time.Minute+5*time.Second || !w.FailingSince.Equal(webhookNow) {
		t.Errorf("%s, failing since %v", total, w.FailingSince)
	}
}

func TestASuccessEndsAFailure(t *testing.T) {
	w, d := Webhook{}, Delivery{State: DeliveryPending}
	w.Settle(&d, w.URL, Result{Error: "refused"}, Retries(), webhookNow)
	attempt, disable := w.Settle(&d, w.URL, Result{Status: 204}, Retries(), webhookNow.Add(5*time.Second))
	if attempt.Error != "" || disable != "" || d.State != DeliveryDelivered || d.NextAt != nil || w.FailingSince != nil ||
		w.LastSuccessAt == nil || d.Sent != 2 {
		t.Errorf("%+v %q %+v %+v", attempt, disable, d, w)
	}
}

func TestAWebhookIsDisabledBy410AndAfterFiveDays(t *testing.T) {
	w, d := Webhook{}, Delivery{State: DeliveryPending}
	if _, disable := w.Settle(&d, w.URL, Result{Status: 410}, Retries(), webhookNow); disable != Gone || d.State != DeliveryFailed {
		t.Errorf("410: %q, %+v", disable, d)
	}
	since := webhookNow.Add(-Patience)
	for later, want := range map[time.Duration]string{-time.Microsecond: "", 0: Failing} {
		w, d := Webhook{DeliveryState: DeliveryState{FailingSince: &since}}, Delivery{State: DeliveryPending}
		if _, disable := w.Settle(&d, w.URL, Result{Status: 500}, Retries(), webhookNow.Add(later)); disable != want {
			t.Errorf("%s: %q instead of %q", later, disable, want)
		}
	}
}

func TestTypesOfWebhooks(t *testing.T) {
	for _, list := range [][]string{nil, {}, {"x"}, {Test}, {PushFailed, PushFailed}} {
		if _, refusal := CheckEvents(list); refusal == nil || refusal.Code != "events_invalid" {
			t.Errorf("%q: %v", list, refusal)
		}
	}
	sorted, refusal := CheckEvents([]string{PushFailed, PeriodClosed})
	if refusal != nil || len(sorted) != 2 || sorted[0] != PeriodClosed {
		t.Errorf("%q, %v", sorted, refusal)
	}
	for _, kind := range Events() {
		if (Subject(kind) == 0) != (kind == AdjustmentPending) {
			t.Errorf("%s has the subject %d", kind, Subject(kind))
		}
	}
}

// A request to the URL from before a change neither disables the webhook nor says that its new endpoint fails or works.
func TestAResultOfAnotherURLSaysNothingAboutTheWebhook(t *testing.T) {
	since := webhookNow.Add(-Patience)
	for status, want := range map[int]string{410: DeliveryPending, 500: DeliveryPending, 204: DeliveryDelivered} {
		for _, failing := range []*time.Time{nil, &since} {
			w, d := Webhook{Webhook: events.Webhook{URL: "https://new.example"}, DeliveryState: DeliveryState{FailingSince: failing}},
				Delivery{State: DeliveryPending}
			_, disable := w.Settle(&d, "https://old.example", Result{Status: status}, Retries(), webhookNow)
			if disable != "" || w.FailingSince != failing || w.LastSuccessAt != nil || d.State != want || d.Sent != 1 {
				t.Errorf("%d: %q, %+v, %+v", status, disable, w, d)
			}
		}
	}
}

// The program verify shares no code with the service, and the documents have no code: each names all types.
func TestEachTypeHasItsCheckAndItsDocument(t *testing.T) {
	for path, quote := range map[string]string{"../../verify/webhooks.go": `"`, "../../docs/reference/webhooks.md": "`"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range Events() {
			if !strings.Contains(string(text), quote+kind+quote) {
				t.Errorf("%s does not have the type %s", path, kind)
			}
		}
	}
}
