package series

import "time"

// Granularity is the length of a bucket, in UTC.
type Granularity string

// The granularities.
const (
	Hour  Granularity = "hour"
	Day   Granularity = "day"
	Month Granularity = "month"
)

// MaxBuckets bounds the buckets of a range: 416 days of hours.
const MaxBuckets = 10_000

// Floor returns the start of the bucket that contains a time.
func (g Granularity) Floor(t time.Time) time.Time {
	t = t.UTC()
	switch g {
	case Hour:
		return t.Truncate(time.Hour)
	case Day:
		return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
	default:
		return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
	}
}

// Next returns the start of the bucket after the one that starts at a time.
func (g Granularity) Next(start time.Time) time.Time {
	switch g {
	case Hour:
		return start.Add(time.Hour)
	case Day:
		return start.AddDate(0, 0, 1)
	default:
		return start.AddDate(0, 1, 0)
	}
}

// Buckets returns the number of buckets in [from, to), at most one more than MaxBuckets.
func (g Granularity) Buckets(from, to time.Time) (n int) {
	for ; from.Before(to) && n <= MaxBuckets; from = g.Next(from) {
		n++
	}
	return n
}
