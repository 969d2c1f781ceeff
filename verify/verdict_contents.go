package verify

import (
	"hash/maphash"
	"strconv"

	"github.com/google/uuid"
)

// maxWaiting bounds the memory for events that wait for their verdict.
const maxWaiting = 2_000_000

// awaitVerdict remembers the content of a recorded event until its verdict.
func (v *verdicts) awaitVerdict(x *pass, r *row, s *content) {
	if len(v.waiting) < v.bound {
		v.waiting[r.position] = v.digest(r.tenant, s, recordedOf(r, s))
	} else {
		x.verdictContents.add(1, "recorded events not compared: too many others waited for their result")
	}
}

// compareContent compares a validation with its recorded event.
func (v *verdicts) compareContent(x *pass, r *row, s *content) {
	if was, known := v.waiting[s.RawPosition]; known && r.subject == validated {
		x.verdictContents.n++
		if was != v.digest(r.tenant, s, judgedBy(s)) {
			x.verdictContents.fault("%s has %s of %.40q for %.40q at %s, which differs from %s", x.at(r.position), s.Amount, s.Feature,
				s.EventID, s.Timestamp, x.at(s.RawPosition))
		}
	}
}

// counted has the members of a recorded event that its verdict repeats, besides eventId and feature. The time of a verdict on a
// correction is that of its target, which correctedUsage compares.
type counted struct {
	amount, kind, ref string
	at                int64 // microseconds of Unix; 0 for a correction
}

func recordedOf(r *row, s *content) counted {
	switch r.subject {
	case corrected:
		return counted{amount: s.Amount.String(), kind: kindCorrection, ref: s.CorrectionRef}
	case retracted:
		return counted{amount: "0", kind: kindRetraction, ref: s.CorrectionRef}
	}
	return counted{amount: s.Amount.String(), at: s.Timestamp.UnixMicro()}
}

// judgedBy returns the recorded usage as its verdict describes it.
func judgedBy(s *content) counted {
	if s.Kind != "" {
		return counted{amount: strconv.FormatInt(s.After, 10), kind: s.Kind, ref: s.TargetEventID}
	}
	return counted{amount: s.Amount.String(), at: s.Timestamp.UnixMicro()}
}

// digest hashes the counted members of an event.
func (v *verdicts) digest(tenant uuid.UUID, s *content, c counted) uint64 {
	v.hash.Reset()
	_, _ = v.hash.Write(tenant[:])
	for _, text := range []string{s.EventID, s.Feature, c.amount, c.kind, c.ref} {
		_, _ = v.hash.WriteString(text)
		_ = v.hash.WriteByte(0)
	}
	maphash.WriteComparable(&v.hash, c.at)
	return v.hash.Sum64()
}
