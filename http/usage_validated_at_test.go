package http_test

import (
	"reflect"
	"testing"
	"time"
)

// The envelope of a verdict holds the time of the validation (validatedAt): it is that of the receipt, is not before the
// time of the recording, and stays the same whenever the event is rendered. The payload holds no second time of it.
func TestTheEnvelopeOfAVerdictHoldsTheTimeOfValidation(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	w.ingest(a, batch(event("validated-once", nil)))
	w.fold()
	read := func() map[string]any {
		t.Helper()
		list := w.want(200, call{method: "GET", path: "/api/v1/events?subject=meterplex.usage.event.validated.v1&tenantId=" + a.id, key: bootstrap})["data"].([]any)
		if len(list) != 1 {
			t.Fatalf("%d verdicts", len(list))
		}
		return list[0].(map[string]any)
	}
	moment := func(text any) time.Time {
		t.Helper()
		at, err := time.Parse(time.RFC3339Nano, text.(string))
		w.must(err)
		return at
	}
	verdict := read()
	receipt := w.want(200, call{method: "GET", path: "/api/v1/usage/events/validated-once", key: a.key})
	validated, recorded := receipt["validated"].(map[string]any)["at"], receipt["recorded"].(map[string]any)["at"]
	if verdict["recordedAt"] != validated || moment(validated).Before(moment(recorded)) {
		t.Errorf("validated at %v by the receipt, %v by the envelope, and recorded at %v", validated, verdict["recordedAt"], recorded)
	}
	if again := read(); !reflect.DeepEqual(again, verdict) {
		t.Errorf("%v, then %v", verdict, again)
	}
	payload := verdict["payload"].(map[string]any)
	for _, member := range []string{"validatedSubscriptionId", "featureType", "periodKey"} {
		if payload[member] == nil || payload[member] == "" {
			t.Errorf("no %s in %v", member, payload)
		}
	}
	for _, member := range []string{"validatedAt", "recordedAt"} {
		if _, there := payload[member]; there {
			t.Errorf("%s is in the payload: %v", member, payload)
		}
	}
}
