package verify

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Each form of a verdict's row gives its payload, and the contents of that.
func TestVerdictsAreReadFromEachForm(t *testing.T) {
	const head = `{"rawPosition":7,"eventId":"e","feature":"f","amount":-5,"count":`
	const tail = `,"timestamp":"2026-05-01T12:00:00.25Z","validatedSubscriptionId":"01890000-0000-7000-8000-000000000001",` +
		`"featureType":"QUOTA","periodKey":"2026-05"`
	const changed = `"kind":"retraction","targetPosition":3,"targetEventId":"a\"","before":5,"after":0`
	const row = `[-5,"f","e","01890000-0000-7000-8000-000000000001","QUOTA",`
	for body, payload := range map[string]string{
		row + `"2026-05"]`:                                            head + `1` + tail + `}`,
		row + `12,"2026-05"]`:                                         head + `1` + tail + `,"grant":12}`,
		row + `0,1,{"admitted":true},"2026-05"]`:                      head + `1` + tail + `,"admitted":true}`,
		row + `-1,-1,{` + changed + `},"2026-05"]`:                    head + `-1` + tail + `,"grant":-1,` + changed + `}`,
		row + `0,1,{"late":{"snapshot":2,"kind":"RETRY"}},"2026-05"]`: head + `1` + tail + `,"late":{"snapshot":2,"kind":"RETRY"}}`,
		head + `2` + tail + `}`:                                       head + `2` + tail + `}`,
	} {
		r := event(8, validated, topicValidated, "v/7", body)
		r.occurred = time.Date(2026, 5, 1, 12, 0, 0, 250_000_000, time.UTC).UnixMicro() - databaseEpoch
		got, err := r.payload()
		if err != nil || string(got) != payload {
			t.Errorf("%s\nis %s, %v\nnot %s", body, got, err, payload)
		}
		var want content
		if err := json.Unmarshal([]byte(payload), &want); err != nil {
			t.Fatal(err)
		}
		if c, err := r.decode(); err != nil || !reflect.DeepEqual(c, want) || c.ValidatedSubscriptionID == uuid.Nil {
			t.Errorf("%s\nis %+v, %v\nnot %+v", body, c, err, want)
		}
	}
	for _, body := range []string{row + `12,1,"2026-05"]`, row + `"x","2026-05"]`, `[]`, `[`} {
		if c, err := event(8, validated, topicValidated, "v/7", body).decode(); err == nil {
			t.Errorf("%s is %+v", body, c)
		}
	}
}
