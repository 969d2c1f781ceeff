package console

import (
	"slices"
	"strconv"
	"strings"
)

// place is the last seen position of each partition, in the order of the API's ids.
type place []partitionPlace

type partitionPlace struct {
	partition string
	number    int64
}

// placeOf reads a place; nil if it is none.
func placeOf(id string) (p place) {
	for one := range strings.SplitSeq(id, ",") {
		partition, digits, found := strings.Cut(one, "-")
		number, err := strconv.ParseInt(digits, 10, 64)
		if !found || err != nil {
			return nil
		}
		p = append(p, partitionPlace{partition, number})
	}
	return p
}

func (p place) String() string {
	all := make([]string, len(p))
	for i, at := range p {
		all[i] = at.partition + "-" + strconv.FormatInt(at.number, 10)
	}
	return strings.Join(all, ",")
}

// pass moves the place to a position, and reports whether it is behind the place. A partition that the place does not name is at its begin.
func (p *place) pass(at partitionPlace) bool {
	i := slices.IndexFunc(*p, func(own partitionPlace) bool { return own.partition == at.partition })
	if i < 0 {
		*p, i = append(*p, partitionPlace{partition: at.partition}), len(*p)
	}
	if (*p)[i].number >= at.number {
		return false
	}
	(*p)[i].number = at.number
	return true
}

// upTo moves the place to another one, in each partition in which that is later.
func (p *place) upTo(other place) {
	for _, at := range other {
		p.pass(at)
	}
}

// downTo moves the place back to another one, in each partition that the other one names with an earlier position.
func (p place) downTo(other place) {
	for i := range p {
		for _, at := range other {
			if at.partition == p[i].partition {
				p[i].number = min(p[i].number, at.number)
			}
		}
	}
}
