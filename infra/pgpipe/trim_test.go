package pgpipe_test

import (
	"context"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/internal/tier"
)

// TestTrim checks that only old rows that every group has passed are deleted.
func TestTrim(t *testing.T) {
	cfg, owner := config(t)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	age := func(by string) {
		exec(t, owner, "UPDATE pipe_usage_raw SET created_at = created_at - $1::interval", by)
	}
	left := func() int64 { return number(t, owner, "SELECT count(*) FROM pipe_usage_raw") }
	trim := func() {
		t.Helper()
		if _, err := pgpipe.Trim(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	rows := tier.Histories(t, 60, 1500)
	for i := range rows {
		publish(t, pub, i, 1)
	}
	slow := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "slow", MaxRecords: 10})
	held, _ := receive(t, slow)
	readAll(t, cfg, "fast", rows)
	age("2 hours")
	if trim(); left() != int64(rows) {
		t.Fatalf("%d rows are left; a group has not read them", left())
	}
	held.Ack()
	for n := 10; n < rows; {
		msg, records := receive(t, slow)
		n += len(records)
		msg.Ack()
	}
	for lag := int64(1); lag > 0; {
		lags, err := pgpipe.Lag(t.Context(), cfg, "slow")
		if err != nil {
			t.Fatal(err)
		}
		lag = lags[events.TopicUsageRaw]
	}
	publish(t, pub, rows, 1)
	if trim(); left() != 1 {
		t.Errorf("%d rows are left, want only the new one", left())
	}
	if age("2 hours"); left() != 1 {
		t.Fatal("the last row was deleted")
	}
	exec(t, owner, "INSERT INTO pipe_offsets_usage_raw VALUES ('gone', 0, '0')")
	if trim(); left() != 1 {
		t.Error("a row that a group has not read was deleted before the retention")
	}
	age("8 days")
	if trim(); left() != 0 {
		t.Error("an abandoned group keeps rows for ever")
	}
}

func readAll(t testing.TB, cfg pgpipe.Config, group string, n int) {
	t.Helper()
	s, err := pgpipe.NewSubscriber(pgpipe.SubscriberConfig{Config: cfg, Group: group})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	messages, err := s.Subscribe(context.Background(), "usage.raw")
	if err != nil {
		t.Fatal(err)
	}
	for seen := 0; seen < n; {
		msg, records := receive(t, messages)
		seen += len(records)
		msg.Ack()
	}
}
