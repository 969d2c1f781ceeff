package usage

import (
	"math/big"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/projections/query"
)

// explainCursor is the cursor of a page of an explanation: its end, with the figure that the
// first page explained: live figures change between pages.
type explainCursor struct {
	asOf  int64   // the position that the figure is true at
	bound int64   // of the live figure: its generation's checkpoint
	after int64   // the last verdict of the page
	total big.Int // the figure
	count int64

	before  big.Int // the sum of the verdicts up to after
	counted int64   // their events
	adds    bool    // false once the events are known not to add up
}

// String returns the text of the cursor.
func (p *explainCursor) String(live bool) string {
	kind := "then"
	if live {
		kind = "live"
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return strings.Join([]string{kind, number(p.asOf), number(p.bound), number(p.after), p.total.String(), number(p.count),
		p.before.String(), number(p.counted), strconv.FormatBool(p.adds)}, "|")
}

// ParseExplainCursor parses the text that String returns; live is nil if s is empty.
func ParseExplainCursor(s string) (p explainCursor, live *bool, err error) {
	if s == "" {
		p.adds = true
		return p, nil, nil
	}
	parts := strings.Split(s, "|")
	if len(parts) != 9 || parts[0] != "live" && parts[0] != "then" {
		return p, nil, query.ErrCursorInvalid
	}
	for i, into := range map[int]*int64{1: &p.asOf, 2: &p.bound, 3: &p.after, 5: &p.count, 7: &p.counted} {
		if *into, err = strconv.ParseInt(parts[i], 10, 64); err != nil {
			return p, nil, query.ErrCursorInvalid
		}
	}
	for i, into := range map[int]*big.Int{4: &p.total, 6: &p.before} {
		if _, ok := into.SetString(parts[i], 10); !ok {
			return p, nil, query.ErrCursorInvalid
		}
	}
	if p.adds, err = strconv.ParseBool(parts[8]); err != nil {
		return p, nil, query.ErrCursorInvalid
	}
	isLive := parts[0] == "live"
	return p, &isLive, nil
}
