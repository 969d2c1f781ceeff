package verify

import (
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
)

// verdicts follows each recorded event to its outcome. An event has exactly one outcome: validated, rejected,
// a failure of the validator, or a stand-in on the topic. After a retry it may be validated in addition.
type verdicts struct {
	hash      maphash.Hash
	upTo      int64 // the validator's checkpoint
	raw       bits
	yes       bits
	no        bits             // rejected at the first attempt
	failed    bits             // the validator could not fold the event
	retries   map[int64]retry  // by the position of the retry
	laterNoes map[string]bool  // rejections of later attempts: raw/attempt
	rawRetry  map[int64]bool   // recorded events that were ever retried
	waiting   map[int64]uint64 // recorded events without a verdict so far
	bound     int              // of waiting
}

type retry struct {
	raw     int64
	attempt int
}

func newVerdicts(upTo int64) verdicts {
	return verdicts{upTo: upTo, bound: maxWaiting, retries: map[int64]retry{}, laterNoes: map[string]bool{}, rawRetry: map[int64]bool{},
		waiting: map[int64]uint64{}}
}

func (v *verdicts) add(x *pass, r *row, s *content, err error) {
	switch r.subject {
	case recorded, admitted, corrected, retracted:
		v.raw.set(r.position, x.head)
		v.awaitVerdict(x, r, s)
	case retried:
		v.retries[r.position], v.rawRetry[s.RawPosition] = retry{s.RawPosition, s.Attempt}, true
		x.verdicts.expect(err == nil && v.raw.has(s.RawPosition), "the retry at %s is of %d, which is no earlier recorded event",
			x.at(r.position), s.RawPosition)
	case validated:
		v.decided(x, r, s, err, "v/"+strconv.FormatInt(s.RawPosition, 10))
		x.verdicts.expect(!v.yes.has(s.RawPosition), "%s is validated a second time at %s", x.at(s.RawPosition), x.at(r.position))
		v.yes.set(s.RawPosition, x.head)
		delete(v.waiting, s.RawPosition)
	case rejected:
		v.decided(x, r, s, err, fmt.Sprintf("x/%d/%d", s.RawPosition, s.Attempt))
		if s.Attempt > 0 {
			v.laterNoes[fmt.Sprint(s.RawPosition, "/", s.Attempt)] = true
			return
		}
		x.verdicts.expect(!v.no.has(s.RawPosition), "%s is rejected a second time at %s", x.at(s.RawPosition), x.at(r.position))
		v.no.set(s.RawPosition, x.head)
	case aggregationFailed:
		if x.services[r.origin] == validator {
			v.failed.set(s.SourcePosition, x.head)
		}
	}
}

// decided checks one verdict against its recorded event.
func (v *verdicts) decided(x *pass, r *row, s *content, err error, key string) {
	if err != nil {
		x.verdicts.fault("the result at %s cannot be read: %v", x.at(r.position), err)
		return
	}
	x.verdicts.expect(s.RawPosition < r.position && v.raw.has(s.RawPosition),
		"the result at %s is on %d, which is no earlier recorded event", x.at(r.position), s.RawPosition)
	x.verdicts.expect(string(r.key) == key, "the result at %s on %d has the key %.40q", x.at(r.position), s.RawPosition, r.key)
	if s.RawPosition > v.upTo {
		x.verdicts.fault("%s has a result at %s, the validator's checkpoint is at %d", x.at(s.RawPosition), x.at(r.position), v.upTo)
	}
	v.compareContent(x, r, s)
}

// end checks that each event up to the checkpoint has exactly one outcome.
func (v *verdicts) end(x *pass) {
	for n := int64(1); n <= min(v.upTo, v.raw.most()); n++ {
		if !v.raw.has(n) {
			continue
		}
		x.verdicts.n++
		other := count(v.no.has(n), v.failed.has(n), x.withheld[n])
		switch {
		case other > 1:
			x.verdicts.fault("%s has %d of the outcomes rejection, failure and stand-in, want one", x.at(n), other)
		case other == 0 && !v.yes.has(n):
			x.verdicts.fault("%s has no result", x.at(n))
		case other == 1 && v.yes.has(n) && !v.rawRetry[n]:
			x.verdicts.fault("%s has a validation beside its %s, and was never retried", x.at(n), v.outcomesOf(x, n))
		}
	}
	for at, r := range v.retries {
		if at > v.upTo {
			continue
		}
		other := count(v.laterNoes[fmt.Sprint(r.raw, "/", r.attempt)], v.failed.has(at), x.withheld[at])
		x.verdicts.expect(other == 1 || other == 0 && v.yes.has(r.raw),
			"retry %d of %s at %s has %d outcomes besides a validation (validated: %v)", r.attempt, x.at(r.raw), x.at(at), other,
			v.yes.has(r.raw))
	}
}

func (v *verdicts) outcomesOf(x *pass, n int64) string {
	var is []string
	for name, so := range map[string]bool{"rejection": v.no.has(n), "failure": v.failed.has(n), "stand-in": x.withheld[n]} {
		if so {
			is = append(is, name)
		}
	}
	return strings.Join(is, " and ")
}

func count(all ...bool) (n int) {
	for _, b := range all {
		if b {
			n++
		}
	}
	return n
}

func (x *pass) addVerdict(r *row, s *content, err error) { x.verdict.add(x, r, s, err) }

func (x *pass) endVerdicts() { x.verdict.end(x) }
