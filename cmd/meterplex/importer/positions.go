package importer

import (
	"strconv"
	"strings"
)

// positions is a set of positions of one partition. It holds a bit for each: an import's events are close together.
type positions struct {
	first int64            // 0: none
	bits  map[int64]uint64 // of 64 positions each
}

func (p *positions) add(n int64) {
	if p.first == 0 || n < p.first {
		p.first = n
	}
	p.bits[n/64] |= 1 << (n % 64)
}

func (p *positions) has(n int64) bool { return n > 0 && p.bits[n/64]&(1<<(n%64)) != 0 }

// numberOf returns the number of a position in its partition, e.g. 4711 of 17-4711, and 0 of any other text.
func numberOf(position string) int64 {
	_, number, _ := strings.Cut(position, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
