package commands

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// replayTx fakes the port of replays. The relay stands at position 100 of each partition;
// consumers need the events after 90, and position n was recorded n minutes after noon.
type replayTx struct {
	*memory
	cursorsHeld bool
	started     []Replay
	steps       []events.ReplayStep
	ended       map[uuid.UUID][]ReplayUnit
	states      map[uuid.UUID]string
	published   []Replay
	records     map[uuid.UUID]int64
}

func (tx *replayTx) ChangeReplays(_ context.Context, cursors bool, decide func(ReplayTx) error) error {
	tx.cursorsHeld = cursors
	return tx.run(events.Platform, func() error { return decide(tx) })
}

func (tx *replayTx) PublishedRanges() ([]Replay, error)          { return tx.published, nil }
func (tx *replayTx) StartReplay(r Replay) error                  { tx.started = append(tx.started, r); return nil }
func (tx *replayTx) RewindRelay(steps []events.ReplayStep) error { tx.steps = steps; return nil }

func (tx *replayTx) RelayCursors() ([]RelayCursor, error) {
	cursors := make([]RelayCursor, events.Partitions)
	for p := range cursors {
		cursors[p] = RelayCursor{int16(p), 100, 90}
	}
	return cursors, nil
}

func (tx *replayTx) Before(at time.Time) (last [events.Partitions]int64, err error) {
	for p := range last {
		last[p] = max(int64(at.Sub(noon)/time.Minute)-1, 0)
	}
	return last, nil
}

func (tx *replayTx) RecordedAt(p events.Position) (time.Time, bool, error) {
	return noon.Add(time.Duration(p.Number) * time.Minute), p.Number <= 120, nil
}

func (tx *replayTx) ReplayRecords(id uuid.UUID) (int64, error) { return tx.records[id], nil }

func (tx *replayTx) EndReplay(id uuid.UUID, state, failure string, _ time.Time, units []ReplayUnit) (bool, error) {
	if tx.states[id] != ReplayRunning {
		return false, nil
	}
	tx.states[id], tx.ended[id] = strings.TrimSpace(state+" "+failure), units
	return true, nil
}

func newReplays() (*Replays, *replayTx) {
	tx := &replayTx{memory: newMemory(), ended: map[uuid.UUID][]ReplayUnit{}, states: map[uuid.UUID]string{{1}: ReplayRunning, {2}: ReplayRunning}}
	transacted(tx.memory, &tx.ended)
	transacted(tx.memory, &tx.states)
	tx.snapshots = append(tx.snapshots, func() func() {
		started := tx.started
		return func() { tx.started = started }
	})
	return &Replays{Store: tx, Now: clock, NewID: tx.newID}, tx
}

func at(partition int16, number int64) *events.Position {
	return &events.Position{Partition: partition, Number: number}
}

func minute(n int) time.Time { return noon.Add(time.Duration(n) * time.Minute) }

func TestBadRangesAreRefused(t *testing.T) {
	elsewhere := (events.PartitionOf(activeTenant) + 1) % events.Partitions
	for name, c := range map[string]struct {
		in            ReplayRange
		code, pointer string
	}{
		"topic":             {ReplayRange{Topic: "none"}, "topic_invalid", "/topic"},
		"topic from others": {ReplayRange{Topic: events.TopicUsageCommands.Name()}, "topic_invalid", "/topic"},
		"half a range":      {ReplayRange{From: at(1, 1)}, "range_invalid", "/from"},
		"no range":          {ReplayRange{}, "range_invalid", "/from"},
		"two ranges":        {ReplayRange{From: at(1, 1), To: at(1, 2), ToTime: noon}, "range_invalid", "/fromTime"},
		"two partitions":    {ReplayRange{From: at(1, 1), To: at(2, 2)}, "range_invalid", "/to"},
		"backwards":         {ReplayRange{From: at(1, 2), To: at(1, 1)}, "range_invalid", "/to"},
		"from 0":            {ReplayRange{From: at(1, 0), To: at(1, 1)}, "range_invalid", "/to"},
		"empty time":        {ReplayRange{FromTime: noon, ToTime: noon}, "range_invalid", "/toTime"},
		"tenant elsewhere":  {ReplayRange{From: at(elsewhere, 1), To: at(elsewhere, 2), TenantID: activeTenant}, "range_invalid", "/tenantId"},
		"no reason":         {ReplayRange{FromTime: noon, Reason: " "}, "reason_required", "/reason"},
		"unknown tenant":    {ReplayRange{FromTime: noon, TenantID: uuid.New()}, "tenant_not_found", "/tenantId"},
		"not published":     {ReplayRange{From: at(1, 101), To: at(1, 102)}, "range_invalid", "/from"},
	} {
		t.Run(name, func(t *testing.T) {
			replays, tx := newReplays()
			if c.in.Topic == "" {
				c.in.Topic = "usage.raw"
			}
			if c.in.Reason == "" {
				c.in.Reason = "why"
			}
			_, err := replays.Range(t.Context(), keyed(1), c.in)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

// everywhere returns a unit for each partition, or only for that of a tenant.
func everywhere(of uuid.UUID, u ReplayUnit) (units []ReplayUnit) {
	for p := range int16(events.Partitions) {
		if of == uuid.Nil || p == events.PartitionOf(of) {
			u.Partition = p
			units = append(units, u)
		}
	}
	return units
}

// A range ends at the relay's cursor: the relay publishes the rest itself.
func TestARangeIsReplayedOnceForEachKey(t *testing.T) {
	for name, c := range map[string]struct {
		in        ReplayRange
		units     []ReplayUnit
		remaining int64
	}{
		"positions":         {ReplayRange{From: at(3, 5), To: at(3, 7)}, []ReplayUnit{{Partition: 3, First: 5, Cursor: 4, UpTo: 7}}, 3},
		"past the relay":    {ReplayRange{From: at(3, 100), To: at(3, 300)}, []ReplayUnit{{Partition: 3, First: 100, Cursor: 99, UpTo: 100}}, 1},
		"times":             {ReplayRange{FromTime: minute(11), ToTime: minute(21)}, everywhere(uuid.Nil, ReplayUnit{First: 11, Cursor: 10, UpTo: 20}), 320},
		"since a time":      {ReplayRange{FromTime: minute(91)}, everywhere(uuid.Nil, ReplayUnit{First: 91, Cursor: 90, UpTo: 100}), 320},
		"a tenant's times":  {ReplayRange{FromTime: minute(11), ToTime: minute(900), TenantID: activeTenant}, everywhere(activeTenant, ReplayUnit{First: 11, Cursor: 10, UpTo: 100}), 90},
		"nothing published": {ReplayRange{FromTime: minute(200)}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			replays, tx := newReplays()
			c.in.Topic, c.in.Reason = "usage.raw", "why"
			answer, event := tx.once(t, caused{subject: events.ReplayRequested, tenant: events.Platform}, func(req Request) (any, error) {
				r, err := replays.Range(t.Context(), req, c.in)
				r.CreatedAt = r.CreatedAt.UTC()
				return r, err
			})
			want := Replay{ID: event.EventID, Kind: events.ReplayRange, Topic: "usage.raw", Reason: "why", State: ReplayRunning, CreatedAt: stored, Remaining: c.remaining, Units: c.units}
			said := events.Replay{Kind: events.ReplayRange, Topic: "usage.raw", Reason: "why"}
			if c.in.TenantID != uuid.Nil {
				want.TenantID, said.TenantID = &c.in.TenantID, &c.in.TenantID
			}
			for _, u := range c.units {
				said.Stretches = append(said.Stretches, events.ReplayStep{Partition: u.Partition, From: u.First, To: u.UpTo})
			}
			if !reflect.DeepEqual(answer, want) || tx.cursorsHeld {
				t.Errorf("%+v instead of %+v", answer, want)
			}
			if got := payload[events.Replay](t, &event); !reflect.DeepEqual(got, said) {
				t.Errorf("recorded %+v instead of %+v", got, said)
			}
		})
	}
}

func TestBadRewindsAreRefused(t *testing.T) {
	outside := events.GroupUsageCommands
	for name, c := range map[string]struct {
		in            Rewind
		code, pointer string
	}{
		"no reason":          {Rewind{Reason: " "}, "reason_required", "/reason"},
		"consumer":           {Rewind{Consumer: "none"}, "consumer_not_found", "/consumer"},
		"place and position": {Rewind{To: RewindToStart, Positions: []events.Position{*at(1, 1)}}, "to_invalid", "/to"},
		"position 0":         {Rewind{Positions: []events.Position{*at(1, 0)}}, "positions_invalid", "/positions"},
		"partition twice":    {Rewind{Positions: []events.Position{*at(1, 1), *at(1, 2)}}, "positions_invalid", "/positions"},
		"time":               {Rewind{To: "yesterday"}, "to_invalid", "/to"},
		"a consumer's place": {Rewind{Consumer: events.GroupAggregator, To: RewindToConsumers}, "to_invalid", "/to"},
		"forward":            {Rewind{Positions: []events.Position{*at(1, 102)}}, "rewind_forward", "/positions"},
		"no positions":       {Rewind{Consumer: outside, Positions: []events.Position{*at(1, 1)}}, "positions_invalid", "/positions"},
		"not in the log":     {Rewind{Consumer: events.GroupAggregator, Positions: []events.Position{*at(1, 121)}}, "positions_invalid", "/positions"},
	} {
		t.Run(name, func(t *testing.T) {
			replays, tx := newReplays()
			if c.in.Reason == "" {
				c.in.Reason = "why"
			}
			_, err := replays.Rewind(t.Context(), keyed(1), c.in)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

func TestTheRelayIsRewoundOnceForEachKey(t *testing.T) {
	for name, c := range map[string]struct {
		in     Rewind
		target string
		units  []ReplayUnit
	}{
		"to its consumers": {Rewind{}, RewindToConsumers, everywhere(uuid.Nil, ReplayUnit{First: 91, Cursor: 90, UpTo: 100})},
		"to the start":     {Rewind{To: RewindToStart}, RewindToStart, everywhere(uuid.Nil, ReplayUnit{First: 1, Cursor: 0, UpTo: 100})},
		"to a time":        {Rewind{To: "2026-05-04T12:50:00Z"}, "2026-05-04T12:50:00Z", everywhere(uuid.Nil, ReplayUnit{First: 50, Cursor: 49, UpTo: 100})},
		"to the present":   {Rewind{To: "2026-06-04T12:00:00Z"}, "2026-06-04T12:00:00Z", nil},
		"to positions": {Rewind{Positions: []events.Position{*at(3, 40), *at(2, 101)}}, "positions",
			[]ReplayUnit{{Partition: 3, First: 40, Cursor: 39, UpTo: 100}}},
	} {
		t.Run(name, func(t *testing.T) {
			replays, tx := newReplays()
			c.in.Reason = "why"
			answer, event := tx.once(t, caused{subject: events.Rewound, tenant: events.Platform}, func(req Request) (any, error) {
				return replays.Rewind(t.Context(), req, c.in)
			})
			r := answer.(Replay)
			if len(tx.started) != 1 || !reflect.DeepEqual(tx.started[0], r) || len(tx.steps) != len(c.units) {
				t.Errorf("started %+v, moved %v", tx.started, tx.steps)
			}
			if r.ID != event.EventID || r.Kind != events.ReplayRelay || r.State != ReplayDone || r.EndedAt == nil || r.Target != c.target ||
				!reflect.DeepEqual(r.Units, c.units) || r.Remaining != remaining(c.units) || !tx.cursorsHeld {
				t.Errorf("%+v", r)
			}
			got := payload[events.Rewind](t, &event)
			if got.ReplayID != r.ID || got.Kind != events.ReplayRelay || got.Consumer != "" || got.Reason != "why" || len(got.Steps) != len(c.units) {
				t.Errorf("recorded %+v", got)
			}
			for i, s := range got.Steps {
				if u := c.units[i]; s != (events.ReplayStep{Partition: u.Partition, From: u.UpTo, To: u.Cursor}) {
					t.Errorf("recorded %+v for %+v", s, u)
				}
			}
		})
	}
}

func TestAConsumersRewindIsRequestedOnceForEachKey(t *testing.T) {
	milli := func(n int) int64 { return minute(n).UnixMilli() }
	for name, c := range map[string]struct {
		in     Rewind
		target string
		units  []ReplayUnit
	}{
		"to the start": {Rewind{To: RewindToStart}, RewindToStart, everywhere(uuid.Nil, ReplayUnit{First: StartOfTopic})},
		"to a time":    {Rewind{To: "2026-05-04T12:50:00Z"}, "2026-05-04T12:50:00Z", everywhere(uuid.Nil, ReplayUnit{First: milli(50)})},
		"before 1970":  {Rewind{To: "1969-05-04T12:50:00Z"}, "1969-05-04T12:50:00Z", everywhere(uuid.Nil, ReplayUnit{First: 0})},
		"to positions": {Rewind{Positions: []events.Position{*at(3, 40), *at(2, 120)}}, "positions",
			[]ReplayUnit{{Partition: 2, First: milli(120)}, {Partition: 3, First: milli(40)}}},
	} {
		t.Run(name, func(t *testing.T) {
			replays, tx := newReplays()
			c.in.Consumer, c.in.Reason = events.GroupAggregator, "why"
			answer, event := tx.once(t, caused{subject: events.ReplayRequested, tenant: events.Platform}, func(req Request) (any, error) {
				r, err := replays.Rewind(t.Context(), req, c.in)
				r.CreatedAt = r.CreatedAt.UTC()
				return r, err
			})
			want := Replay{ID: event.EventID, Kind: events.ReplayConsumer, Topic: "usage.validated", Consumer: events.GroupAggregator, Target: c.target,
				Reason: "why", State: ReplayRunning, CreatedAt: stored, Units: c.units}
			if !reflect.DeepEqual(answer, want) || tx.cursorsHeld {
				t.Errorf("%+v instead of %+v", answer, want)
			}
			got := payload[events.Replay](t, &event)
			if got.Kind != events.ReplayConsumer || got.Consumer != events.GroupAggregator || got.To != c.target || len(got.Positions) != len(c.in.Positions) || got.Reason != "why" {
				t.Errorf("recorded %+v", got)
			}
		})
	}
}

// byRelay checks an event that ends a replay.
func byRelay(t *testing.T, p *events.Pending, subject events.Subject) {
	t.Helper()
	caused{subject: subject, tenant: events.Platform, key: events.KeyEvent(p.EventID), actor: events.Actor{Type: "service", ID: "meterplex-relay"}}.checkOf(t, p)
}

func TestTheEndOfAReplayIsRecordedOnce(t *testing.T) {
	replays, tx := newReplays()
	rewind := Replay{ID: uuid.UUID{1}, Kind: events.ReplayConsumer, Consumer: events.GroupAggregator, Topic: "usage.validated", Reason: "why",
		Units: []ReplayUnit{{Partition: 2, First: 5}, {Partition: 3, First: 6}}}
	steps := []events.ReplayStep{{Partition: 3, From: 70, To: 60}}
	for range 2 {
		p := tx.succeeded(t, replays.EndRewind(t.Context(), rewind, steps, ""), 1)
		byRelay(t, &p, events.Rewound)
		got := payload[events.Rewind](t, &p)
		if !reflect.DeepEqual(got, events.Rewind{ReplayID: rewind.ID, Kind: rewind.Kind, Consumer: rewind.Consumer, Steps: steps, Reason: "why"}) {
			t.Errorf("recorded %+v", got)
		}
		want := []ReplayUnit{{Partition: 2, First: 5}, {Partition: 3, First: 6, Cursor: 60, UpTo: 70}}
		if tx.states[rewind.ID] != ReplayDone || !reflect.DeepEqual(tx.ended[rewind.ID], want) || rewind.Units[1].Cursor != 0 {
			t.Errorf("%s: %+v", tx.states[rewind.ID], tx.ended[rewind.ID])
		}
	}
}

func TestTheFailureOfAReplayIsRecorded(t *testing.T) {
	replays, tx := newReplays()
	p := tx.succeeded(t, replays.EndRewind(t.Context(), Replay{ID: uuid.UUID{1}, Topic: "usage.raw"}, nil, "no broker"), 1)
	byRelay(t, &p, events.ReplayDone)
	if got := payload[events.ReplayEnd](t, &p); got != (events.ReplayEnd{ReplayID: uuid.UUID{1}, Topic: "usage.raw", Failure: "no broker"}) || tx.states[uuid.UUID{1}] != "FAILED no broker" {
		t.Errorf("%s, recorded %+v", tx.states[uuid.UUID{1}], got)
	}
	tx.records = map[uuid.UUID]int64{{2}: 9}
	p = tx.succeeded(t, replays.Fail(t.Context(), uuid.UUID{2}, "usage.raw", "no topic"), 2)
	if got := payload[events.ReplayEnd](t, &p); got != (events.ReplayEnd{ReplayID: uuid.UUID{2}, Topic: "usage.raw", Records: 9, Failure: "no topic"}) {
		t.Errorf("recorded %+v", got)
	}
}

func TestPublishedRangesEnd(t *testing.T) {
	replays, tx := newReplays()
	tx.again = true
	tx.published = []Replay{
		{ID: uuid.UUID{1}, Topic: "usage.raw", Units: []ReplayUnit{{Records: 3}, {Records: 4}}},
		{ID: uuid.UUID{9}}, // another instance ended it
		{ID: uuid.UUID{2}, Topic: "usage.validated"},
	}
	tx.succeeded(t, replays.EndRanges(t.Context()), 2)
	for i, want := range []events.ReplayEnd{{ReplayID: uuid.UUID{1}, Topic: "usage.raw", Records: 7}, {ReplayID: uuid.UUID{2}, Topic: "usage.validated"}} {
		byRelay(t, &tx.appended[i], events.ReplayDone)
		if got := payload[events.ReplayEnd](t, &tx.appended[i]); got != want || tx.states[want.ReplayID] != ReplayDone {
			t.Errorf("recorded %+v instead of %+v", got, want)
		}
	}
}
