package bench

import "testing"

func TestHistoryEndsAtItsLastRejection(t *testing.T) {
	p := &historyWriter{shape: oneFigure(), head: 10, raw: 9, verdict: 8, letter: 3}
	if got := p.ends(0); got != (historyEnds{10, 9, 8, 3}) {
		t.Errorf("%+v", got)
	}
	if got := p.ends(2); got != (historyEnds{4010, 3010, 4009, 4010}) {
		t.Errorf("%+v", got)
	}
	p.shape = manyFigures()
	if got := p.ends(2); got != (historyEnds{4010, 3010, 4010, 3}) {
		t.Errorf("%+v", got)
	}
}
