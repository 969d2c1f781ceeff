package codec

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// FuzzAdmittedJSON: admitted usage is written as json.Marshal writes it, and read as json.Unmarshal reads it.
func FuzzAdmittedJSON(f *testing.F) {
	f.Add("evt_1", "api_calls", int64(5), int64(1777636800123456), "2026-05", `{"region":"eu","n":[1,{}]}`, "", uint64(7), true)
	f.Add("<é\"\x00\xff\u2028>", "&", int64(-5), int64(-1), "", `{"a":"<"}`, "//s", uint64(0), false)
	f.Add("e", "f", int64(0), int64(1), "lifetime", "", "\u2029", uint64(1)<<63, true)
	f.Fuzz(func(t *testing.T, id, feature string, amount, at int64, period, metadata, source string, used uint64, limited bool) {
		a := events.Admitted{Usage: events.Usage{EventID: id, Feature: feature, Amount: amount, Timestamp: time.UnixMicro(at).UTC(),
			Type: "usage", Source: source},
			Admitted: events.Admission{By: events.ByEnforce, SubscriptionID: uuid.UUID{1}, FeatureType: "QUOTA", PeriodKey: period}}
		if canonical, err := compact(metadata); err == nil {
			a.Metadata = canonical
		}
		if limited {
			sum := json.Number(json.Number(uint64Text(used)) + "000")
			if used == 0 {
				sum = "0"
			}
			a.Admitted.Limit, a.Admitted.Used, a.Admitted.Held = &amount, &sum, &sum
		}
		want, errWant := json.Marshal(&a)
		got, err := AdmittedJSON(&a)
		if (err == nil) != (errWant == nil) || string(got) != string(want) {
			t.Fatalf("%s (%v)\ninstead of %s (%v)", got, err, want, errWant)
		}
		if err != nil {
			return
		}
		var read events.Admitted
		must.OK(t, json.Unmarshal(want, &read))
		if own, err := AdmittedOf(want); err != nil || !reflect.DeepEqual(own, read) {
			t.Fatalf("%+v (%v)\ninstead of %+v", own, err, read)
		}
	})
}

func compact(text string) (json.RawMessage, error) {
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil || v == nil {
		return nil, errNoObject
	}
	return json.Marshal(v)
}

var errNoObject = &json.UnsupportedValueError{}

func uint64Text(n uint64) string {
	text, _ := json.Marshal(n)
	return string(text)
}

// The form that this service writes is read without reflection.
func TestAdmittedUsageOfThisServiceIsReadFast(t *testing.T) {
	used, held, limit := json.Number("953"), json.Number("0"), int64(2000)
	for _, a := range []events.Admitted{
		{Usage: events.Usage{EventID: "e", Feature: "f", Amount: 3, Timestamp: time.UnixMicro(1777636800123456).UTC(), Type: "usage"},
			Admitted: events.Admission{By: events.ByConsume, FeatureType: "METERED", PeriodKey: "lifetime"}},
		{Usage: events.Usage{EventID: "e", Feature: "f", Amount: 3, Timestamp: time.UnixMicro(1777636800000000).UTC(),
			Metadata: json.RawMessage(`{"m":"x"}`), Type: "usage", Source: "//s"},
			Admitted: events.Admission{By: events.ByEnforce, FeatureType: "QUOTA", PeriodKey: "2026-05", Limit: &limit, Used: &used,
				Held: &held}},
	} {
		text, err := AdmittedJSON(&a)
		if got, ok := parseAdmitted(text); err != nil || !ok || !reflect.DeepEqual(got, a) {
			t.Errorf("%s is read as %+v, %v", text, got, ok)
		}
	}
}
