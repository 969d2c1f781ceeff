package domain

import (
	"testing"
	"time"
)

func TestCheckWindow(t *testing.T) {
	now := time.Date(2026, 5, 8, 12, 0, 0, 999_999_999, time.UTC)
	cut := now.Truncate(time.Microsecond)
	const ahead, behind = 5 * time.Minute, 7 * 24 * time.Hour
	for _, c := range []struct {
		ts       time.Time
		behind   time.Duration
		backfill bool
		code     string
	}{
		{now, behind, false, ""},
		{cut.Add(ahead), behind, false, ""},
		{cut.Add(ahead + time.Microsecond), behind, false, "timestamp_in_future"},
		{cut.Add(-behind), behind, false, ""},
		{cut.Add(-behind - time.Microsecond), behind, false, "timestamp_too_old"},
		{cut.Add(-behind - time.Microsecond), behind, true, ""},
		{time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), behind, false, "timestamp_too_old"},
		{time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), behind, true, ""},
		{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), behind, true, "timestamp_in_future"},
		{cut, 0, false, ""},
		{cut.Add(-time.Microsecond), 0, false, "timestamp_too_old"},
	} {
		fault := TimestampWindow{ahead, c.behind}.Check(c.ts, now, c.backfill)
		if (fault == nil) != (c.code == "") || fault != nil && (fault.Code != c.code || fault.Pointer != "/timestamp") {
			t.Errorf("%v, behind %v: %v, want %q", c.ts, c.behind, fault, c.code)
		}
	}
}
