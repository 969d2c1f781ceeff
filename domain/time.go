package domain

import (
	"time"

	"github.com/meterplex/meterplex/domain/strictjson"

	"github.com/meterplex/meterplex/events/codec"
)

// ParseTime reads a time of RFC 3339 strictly and returns it in UTC, cut (never
// rounded) to microseconds, the precision of the log. A time rounded up could fall
// into the next month and be billed there.
//
// The form is YYYY-MM-DDThh:mm:ss, up to 9 fraction digits after a point, then Z or
// ±hh:mm. ParseTime refuses lower-case t and z, second 60, hour 24, days that the
// month lacks, offsets of 24 hours and more, and times outside the years 0001 to 9999
// in UTC. The code of a refusal is timestamp_invalid.
func ParseTime[T string | []byte](s T) (time.Time, *Error) {
	t, why := parseTime([]byte(s))
	if why != "" {
		return time.Time{}, timeRefusal([]byte(s), why)
	}
	return t, nil
}

func timeRefusal(s []byte, why string) *Error {
	return &Error{Code: "timestamp_invalid", Message: "Invalid time " + strictjson.Quote(s) +
		": expected RFC 3339, e.g. 2026-05-01T12:00:00Z: " + why}
}

func parseTime(s []byte) (t time.Time, why string) {
	if len(s) < len("2006-01-02T15:04:05Z") {
		return t, "too short; date, time and offset are required"
	}
	if why := separators(s); why != "" {
		return t, why
	}
	year, month, day := ReadDigits(s[0:4]), ReadDigits(s[5:7]), ReadDigits(s[8:10])
	hour, minute, second := ReadDigits(s[11:13]), ReadDigits(s[14:16]), ReadDigits(s[17:19])
	if why := ranges(year, month, day, hour, minute, second); why != "" {
		return t, why
	}
	nanos, rest, why := fraction(s[19:])
	if why != "" {
		return t, why
	}
	offset, why := zone(rest)
	if why != "" {
		return t, why
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second-offset, nanos, time.UTC)
	if y := t.Year(); y < 1 || y > 9999 {
		return time.Time{}, "in UTC it is outside the years 0001 to 9999"
	}
	return t, ""
}

func separators(s []byte) string {
	switch {
	case s[4] != '-' || s[7] != '-' || s[13] != ':' || s[16] != ':':
		return "write YYYY-MM-DDThh:mm:ss"
	case s[10] == 't':
		return "write the T between date and time in upper case"
	case s[10] != 'T':
		return "write a T between date and time"
	}
	return ""
}

// ReadDigits parses digits; it returns -1 for any other character.
func ReadDigits(digits []byte) int {
	n := 0
	for _, c := range digits {
		if c-'0' > 9 {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}

func ranges(year, month, day, hour, minute, second int) string {
	switch {
	case min(year, month, day, hour, minute, second) < 0:
		return "a digit is missing"
	case month < 1 || month > 12:
		return "months go from 01 to 12"
	case day < 1 || day > daysIn(year, month):
		return "the month has no such day"
	case hour > 23:
		return "hours go from 00 to 23"
	case minute > 59:
		return "minutes go from 00 to 59"
	case second > 59:
		return "seconds go from 00 to 59; leap seconds are refused"
	}
	return ""
}

func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// fraction reads the optional fraction of the seconds and cuts it to microseconds.
func fraction(s []byte) (nanos int, rest []byte, why string) {
	if len(s) > 0 && s[0] == ',' {
		return 0, nil, "write a point before the fraction"
	}
	if len(s) == 0 || s[0] != '.' {
		return 0, s, ""
	}
	n := 1
	for scale := 100_000_000; n < len(s) && s[n]-'0' <= 9; n++ {
		nanos += int(s[n]-'0') * scale
		scale /= 10
	}
	if n == 1 || n > 1+9 {
		return 0, nil, "the fraction has 1 to 9 digits"
	}
	return nanos - nanos%1000, s[n:], ""
}

// zone reads the offset from UTC in seconds.
func zone(s []byte) (offset int, why string) {
	switch {
	case len(s) == 1 && s[0] == 'Z':
		return 0, ""
	case len(s) == 1 && s[0] == 'z':
		return 0, "write the Z in upper case"
	case len(s) == 0:
		return 0, "the offset is missing; end with Z or one such as +02:00"
	case len(s) != len("+00:00") || s[0] != '+' && s[0] != '-' || s[3] != ':':
		return 0, "end with Z or an offset such as +02:00"
	}
	hours, minutes := ReadDigits(s[1:3]), ReadDigits(s[4:6])
	if min(hours, minutes) < 0 || hours > 23 || minutes > 59 {
		return 0, "the offset goes from -23:59 to +23:59"
	}
	offset = hours*3600 + minutes*60
	if s[0] == '-' {
		offset = -offset
	}
	return offset, ""
}

// FormatTime writes a time in the form of payloads and responses: UTC with Z, in
// microseconds, without trailing zeros of the fraction. Equal instants give equal
// texts. The year must be 0001 to 9999.
func FormatTime(t time.Time) string {
	return string(codec.AppendTime(make([]byte, 0, len("2006-01-02T15:04:05.000000Z")), t))
}
