package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// vectors are those of vectors.json.
type vectors struct {
	EventIDs, EventIDsRefused []json.RawMessage
	Canonical                 []struct {
		Event     json.RawMessage
		Canonical string
	}
	Refused []struct {
		Event json.RawMessage
		Code  string
	}
	Amounts, AmountsRefused []json.RawMessage
	UsageIDs                []struct{ ReservationID, EventID string }
}

func (x *trial) vectors() (v vectors) {
	x.Helper()
	readJSON(x, filepath.Join(x.suite.Testdata, "vectors.json"), &v)
	return v
}

func readJSON(t testing.TB, path string, out any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// members reads an object, with its numbers as they are written.
func members(t testing.TB, raw json.RawMessage) (out object) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func vectorCases() []Case {
	return []Case{
		{Name: "event-ids", local: true, Promise: "eventId gives the same id in each language", run: func(x *trial) {
			p := newProgram(x, x.language)
			for _, raw := range x.vectors().EventIDs {
				var got struct{ EventID string }
				in := members(x, raw)
				if p.must("eventId", in, &got); got.EventID != in["id"] {
					x.Errorf("%s: %s", raw, got.EventID)
				}
			}
		}},
		{Name: "event-ids-refused", local: true, Promise: "eventId refuses parts that are empty or contain the separator",
			run: func(x *trial) {
				p := newProgram(x, x.language)
				for _, raw := range x.vectors().EventIDsRefused {
					p.refused("invalid_argument", "eventId", members(x, raw))
				}
			}},
		{Name: "canonical", local: true, Promise: "an event has the same bytes in each language", Essential: true, run: func(x *trial) {
			p := newProgram(x, x.language)
			for _, v := range x.vectors().Canonical {
				var got struct{ Canonical string }
				if p.must("canonical", object{"event": v.Event}, &got); got.Canonical != v.Canonical {
					x.Errorf("%s: %s, want %s", v.Event, got.Canonical, v.Canonical)
				}
			}
		}},
		{Name: "canonical-accepted", Promise: "the service takes an event in another form, with other spacing and zone, for a duplicate",
			run: canonicalIsAccepted},
		{Name: "refused-events", Promise: "record refuses an invalid event with the service's code and stores nothing", Essential: true,
			run: func(x *trial) {
				c := x.open()
				for _, v := range x.vectors().Refused {
					if f := new(failure); !errors.As(c.call("record", object{"event": v.Event}, nil), &f) || f.Code != v.Code {
						x.Errorf("%s: %v, want %s", v.Event, f, v.Code)
					}
				}
				if s := c.stats(); s.Waiting != 0 {
					x.Errorf("%d refused events wait", s.Waiting)
				}
				c.record(usage("valid"))
				c.sent()
				x.counts("valid")
			}},
		{Name: "amounts", local: true, Promise: "amount is exact", run: func(x *trial) {
			p := newProgram(x, x.language)
			for _, raw := range x.vectors().Amounts {
				var got struct{ Amount string }
				in := members(x, raw)
				want := in["amount"].(json.Number).String()
				delete(in, "amount")
				in["unit"] = "second"
				if p.must("amount", in, &got); got.Amount != want {
					x.Errorf("%s: %s", raw, got.Amount)
				}
			}
		}},
		{Name: "amounts-refused", local: true, Promise: "amount refuses what is not exact, not positive or too large, and names the unit",
			run: func(x *trial) {
				p := newProgram(x, x.language)
				for _, raw := range x.vectors().AmountsRefused {
					in := members(x, raw)
					in["unit"] = "fortnight"
					if f := p.refused("amount_invalid", "amount", in); !bytes.Contains([]byte(f.Detail), []byte("fortnight")) {
						x.Errorf("%s: the error does not name the unit: %s", raw, f.Detail)
					}
				}
			}},
	}
}

// canonicalIsAccepted records each canonical vector of usage, and lets the service compare it with the event as it was given.
func canonicalIsAccepted(x *trial) {
	c := x.open()
	var given []object
	for i, v := range x.vectors().Canonical {
		e := members(x, v.Event)
		if e["type"] != nil && e["type"] != "usage" {
			continue
		}
		e["eventId"], e["feature"] = []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}[i], "sdk_calls"
		e["timestamp"] = time.Now().UTC().Format("2006-01-02T15:04:05.999999Z")
		given = append(given, e)
	}
	ids := c.record(given...)
	c.sent()
	for _, e := range given {
		at, _ := time.Parse(time.RFC3339Nano, e["timestamp"].(string))
		e["timestamp"] = at.In(time.FixedZone("", 3600)).Format("2006-01-02T15:04:05.000000Z07:00")
	}
	var answer struct{ Duplicates int }
	x.asTenant("/usage/events", object{"events": given}, &answer)
	if answer.Duplicates != len(given) {
		x.Errorf("%d of %d events in another form are duplicates", answer.Duplicates, len(given))
	}
	x.counts(ids...)
}

// golden is the content of a queue in testdata.
type golden struct {
	Events  []string
	Damaged []struct{ Segment, Offset, Bytes int64 }
}

// goldenCases reads each queue of testdata.
func goldenCases(t testing.TB, testdata string) (all []Case) {
	t.Helper()
	var queues map[string]golden
	readJSON(t, filepath.Join(testdata, "queues.json"), &queues)
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		all = append(all, Case{Name: "golden-" + name, local: true,
			Promise: "the queue " + name + " of testdata is read as queues.json says", run: func(x *trial) {
				x.copyQueue(filepath.Join(testdata, "queues", name))
				var got golden
				newProgram(x, x.language).must("readQueue", object{"dir": x.dir}, &struct {
					EventIDs *[]string
					Damaged  any
				}{&got.Events, &got.Damaged})
				if want := queues[name]; !slices.Equal(got.Events, want.Events) || !slices.Equal(got.Damaged, want.Damaged) {
					x.Errorf("%+v, want %+v", got, want)
				}
			}})
	}
	return all
}

// copyQueue copies a directory into the trial's. Its owner died an hour ago.
func (x *trial) copyQueue(from string) {
	x.Helper()
	if err := os.CopyFS(x.dir, os.DirFS(from)); err != nil {
		x.Fatal(err)
	}
	x.age()
}

// age makes the owners of all queues an hour old.
func (x *trial) age() {
	x.Helper()
	before := time.Now().Add(-time.Hour)
	err := filepath.WalkDir(x.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "owner" {
			err = os.Chtimes(path, before, before)
		}
		return err
	})
	if err != nil {
		x.Fatal(err)
	}
}
