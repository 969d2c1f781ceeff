package domain

import (
	"testing"
	"time"
)

var webhookNow = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func TestADeliveryIsRetriedByTheSchedule(t *testing.T) {
	w, d, now := Webhook{}, Delivery{State: DeliveryPending}, webhookNow
	total := time.Duration(0)
	for i, wait := range WebhookRetries() {
		attempt, disable := w.Settle(&d, w.URL, WebhookResult{Status: 500, Duration: time.Second}, WebhookRetries(), now)
		if attempt.N != i+1 || attempt.Error == "" || !attempt.At.Equal(now.Add(-time.Second)) || disable != "" || d.State != DeliveryPending || !d.NextAt.Equal(now.Add(wait)) {
			t.Fatalf("attempt %d: %+v, %q, %+v", i+1, attempt, disable, d)
		}
		now = now.Add(wait)
		total += wait
	}
	if _, disable := w.Settle(&d, w.URL, WebhookResult{Error: "x"}, WebhookRetries(), now); disable != "" || d.State != DeliveryFailed || d.NextAt != nil || d.EndedAt == nil || d.Sent != 10 {
		t.Errorf("after the last retry: %q, %+v", disable, d)
	}
	if total != 75*time.Hour+35*time.Minute+5*time.Second || !w.FailingSince.Equal(webhookNow) {
		t.Errorf("%s, failing since %v", total, w.FailingSince)
	}
}

func TestASuccessEndsAFailure(t *testing.T) {
	w, d := Webhook{}, Delivery{State: DeliveryPending}
	w.Settle(&d, w.URL, WebhookResult{Error: "refused"}, WebhookRetries(), webhookNow)
	attempt, disable := w.Settle(&d, w.URL, WebhookResult{Status: 204}, WebhookRetries(), webhookNow.Add(5*time.Second))
	if attempt.Error != "" || disable != "" || d.State != DeliveryDelivered || d.NextAt != nil || w.FailingSince != nil || w.LastSuccessAt == nil || d.Sent != 2 {
		t.Errorf("%+v %q %+v %+v", attempt, disable, d, w)
	}
}

func TestAWebhookIsDisabledBy410AndAfterFiveDays(t *testing.T) {
	w, d := Webhook{}, Delivery{State: DeliveryPending}
	if _, disable := w.Settle(&d, w.URL, WebhookResult{Status: 410}, WebhookRetries(), webhookNow); disable != WebhookGone || d.State != DeliveryFailed {
		t.Errorf("410: %q, %+v", disable, d)
	}
	since := webhookNow.Add(-WebhookPatience)
	for later, want := range map[time.Duration]string{-time.Microsecond: "", 0: WebhookFailing} {
		w, d := Webhook{FailingSince: &since}, Delivery{State: DeliveryPending}
		if _, disable := w.Settle(&d, w.URL, WebhookResult{Status: 500}, WebhookRetries(), webhookNow.Add(later)); disable != want {
			t.Errorf("%s: %q instead of %q", later, disable, want)
		}
	}
}

func TestTypesOfWebhooks(t *testing.T) {
	for _, list := range [][]string{nil, {}, {"x"}, {WebhookTest}, {WebhookPushFailed, WebhookPushFailed}} {
		if _, refusal := CheckWebhookEvents(list); refusal == nil || refusal.Code != "events_invalid" {
			t.Errorf("%q: %v", list, refusal)
		}
	}
	sorted, refusal := CheckWebhookEvents([]string{WebhookPushFailed, WebhookPeriodClosed})
	if refusal != nil || len(sorted) != 2 || sorted[0] != WebhookPeriodClosed {
		t.Errorf("%q, %v", sorted, refusal)
	}
	for _, kind := range WebhookEvents() {
		if (WebhookSubject(kind) == 0) != (kind == WebhookAdjustmentPending) {
			t.Errorf("%s has the subject %d", kind, WebhookSubject(kind))
		}
	}
}

// A request to the URL from before a change neither disables the webhook nor says that its new endpoint fails or works.
func TestAResultOfAnotherURLSaysNothingAboutTheWebhook(t *testing.T) {
	since := webhookNow.Add(-WebhookPatience)
	for status, want := range map[int]string{410: DeliveryPending, 500: DeliveryPending, 204: DeliveryDelivered} {
		for _, failing := range []*time.Time{nil, &since} {
			w, d := Webhook{URL: "https://new.example", FailingSince: failing}, Delivery{State: DeliveryPending}
			_, disable := w.Settle(&d, "https://old.example", WebhookResult{Status: status}, WebhookRetries(), webhookNow)
			if disable != "" || w.FailingSince != failing || w.LastSuccessAt != nil || d.State != want || d.Sent != 1 {
				t.Errorf("%d: %q, %+v, %+v", status, disable, w, d)
			}
		}
	}
}
