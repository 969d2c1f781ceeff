package http

import (
	"strconv"
	"unicode/utf8"

	"github.com/meterplex/meterplex/commands/metering"
)

// batchVerdict documents the answer to a batch, which appendVerdicts writes.
type batchVerdict struct {
	Accepted   int            `json:"accepted"`
	Duplicates int            `json:"duplicates"`
	Conflicts  int            `json:"conflicts"`
	Rejected   int            `json:"rejected"`
	Events     []eventVerdict `json:"events" nullable:"false" doc:"One for each event, in the order they were sent."`
}

type eventVerdict struct {
	Index    int     `json:"index"`
	EventID  *string `json:"eventId" doc:"null if the event has no valid one."`
	Status   string  `json:"status" enum:"accepted,duplicate,conflict,rejected"`
	Code     string  `json:"code,omitempty" doc:"Code of a conflict or rejection; stable."`
	Reason   string  `json:"reason,omitempty"`
	Pointer  string  `json:"pointer,omitempty" doc:"JSON pointer to the member at fault, if there is one."`
	Position string  `json:"position,omitempty" doc:"Position of the event in the log; of a duplicate or conflict, of the first event with its key." example:"17-4711"`
}

// counts holds the number of events per verdict.
type counts struct {
	accepted, duplicates, conflicts, rejected int
	denied                                    int            // of the rejected: above a limit
	heldBack                                  int            // of the rejected: because of another event of their batch
	codes                                     map[string]int // the rejected usage events by code; nil: none
}

// Codes that are counted.
const (
	codeQuotaExceeded   = "quota_exceeded"
	codePayloadConflict = "payload_conflict"
)

func countVerdicts(verdicts []metering.EventVerdict) (c counts) {
	for i := range verdicts {
		switch verdicts[i].Status {
		case metering.StatusAccepted:
			c.accepted++
		case metering.StatusDuplicate:
			c.duplicates++
		case metering.StatusConflict:
			c.conflicts++
		default:
			c.rejected++
			if verdicts[i].Code == metering.CodeBatchRefused {
				c.heldBack++
				continue
			}
			if verdicts[i].Code == codeQuotaExceeded {
				c.denied++
			}
			if c.codes == nil {
				c.codes = map[string]int{}
			}
			c.codes[verdicts[i].Code]++
		}
	}
	return c
}

// answerRoom is about the size of one verdict in bytes.
const answerRoom = 112

func appendVerdicts(dst []byte, c counts, verdicts []metering.EventVerdict) []byte {
	dst = strconv.AppendInt(append(dst, `{"accepted":`...), int64(c.accepted), 10)
	dst = strconv.AppendInt(append(dst, `,"duplicates":`...), int64(c.duplicates), 10)
	dst = strconv.AppendInt(append(dst, `,"conflicts":`...), int64(c.conflicts), 10)
	dst = strconv.AppendInt(append(dst, `,"rejected":`...), int64(c.rejected), 10)
	dst = append(dst, `,"events":[`...)
	for i := range verdicts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendVerdict(dst, &verdicts[i])
	}
	return append(dst, "]}\n"...)
}

func appendVerdict(dst []byte, v *metering.EventVerdict) []byte {
	dst = strconv.AppendInt(append(dst, `{"index":`...), int64(v.Index), 10)
	if v.EventID == "" {
		dst = append(dst, `,"eventId":null`...)
	} else {
		dst = appendMember(dst, "eventId", v.EventID)
	}
	dst = appendMember(dst, "status", v.Status)
	for _, m := range [...]struct{ name, value string }{{"code", v.Code}, {"reason", v.Reason}, {"pointer", v.Pointer}} {
		if m.value != "" {
			dst = appendMember(dst, m.name, m.value)
		}
	}
	if v.Position != nil {
		dst = append(dst, `,"position":"`...)
		dst = strconv.AppendInt(dst, int64(v.Position.Partition), 10)
		dst = append(dst, '-')
		dst = strconv.AppendInt(dst, v.Position.Number, 10)
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

func appendMember(dst []byte, name, value string) []byte {
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return appendText(dst, value)
}

const hexDigits = "0123456789abcdef"

// appendText writes a JSON string. Invalid UTF-8 becomes U+FFFD, as in encoding/json.
func appendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, s[start:i]...), "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c < ' ' || c == '"' || c == '\\' {
			dst = append(dst, s[start:i]...)
			dst = appendEscape(dst, c)
			start = i + 1
		}
		i++
	}
	return append(append(dst, s[start:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	if c == '"' || c == '\\' {
		return append(dst, '\\', c)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}
