package usage

import (
	"strconv"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/http/api"
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
	Position string  `json:"position,omitempty" example:"17-4711"`
}

// answerRoom is about the size of one verdict in bytes.
const answerRoom = 112

func appendVerdicts(dst []byte, c api.Counts, verdicts []metering.EventVerdict) []byte {
	dst = strconv.AppendInt(append(dst, `{"accepted":`...), int64(c.Accepted), 10)
	dst = strconv.AppendInt(append(dst, `,"duplicates":`...), int64(c.Duplicates), 10)
	dst = strconv.AppendInt(append(dst, `,"conflicts":`...), int64(c.Conflicts), 10)
	dst = strconv.AppendInt(append(dst, `,"rejected":`...), int64(c.Rejected), 10)
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
		dst = api.AppendMember(dst, "eventId", v.EventID)
	}
	dst = api.AppendMember(dst, "status", v.Status)
	for _, m := range [...]struct{ name, value string }{{"code", v.Code}, {"reason", v.Reason}, {"pointer", v.Pointer}} {
		if m.value != "" {
			dst = api.AppendMember(dst, m.name, m.value)
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
