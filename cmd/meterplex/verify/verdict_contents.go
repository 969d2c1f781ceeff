package verify

import (
	"hash/maphash"

	"github.com/google/uuid"
)

// maxWaiting bounds the memory for events that wait for their verdict.
const maxWaiting = 2_000_000

// awaitVerdict remembers the content of a recorded event until its verdict.
func (v *verdicts) awaitVerdict(x *pass, r *row, s *content) {
	if len(v.waiting) < v.bound {
		v.waiting[r.position] = v.digest(r.tenant, s)
	} else {
		x.verdictContents.add(1, "recorded events not compared: too many others waited for their verdict")
	}
}

// compareContent compares a validation with its recorded event.
func (v *verdicts) compareContent(x *pass, r *row, s *content) {
	if was, known := v.waiting[s.RawPosition]; known && r.subject == validated {
		x.verdictContents.n++
		if was != v.digest(r.tenant, s) {
			x.verdictContents.fault("%s has %s of %.40q for %.40q at %s, which differs from %s", x.at(r.position), s.Amount, s.Feature, s.EventID, s.Timestamp, x.at(s.RawPosition))
		}
	}
}

// digest hashes the counted members of an event.
func (v *verdicts) digest(tenant uuid.UUID, s *content) uint64 {
	v.hash.Reset()
	_, _ = v.hash.Write(tenant[:])
	for _, text := range []string{s.EventID, s.Feature, s.Amount.String()} {
		_, _ = v.hash.WriteString(text)
		_ = v.hash.WriteByte(0)
	}
	maphash.WriteComparable(&v.hash, s.Timestamp.UnixMicro())
	return v.hash.Sum64()
}
