package edge

import (
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/problem"
)

// Memory of the rows that an answer is made of.
const (
	rowCost  = 1 << 10        // of a page, for each
	PageCost = 1024 * rowCost // of CSV or an export, which hold a page
)

// Stream begins an answer that is written while it is computed: from here on the request holds no slot, and the memory of the page that it
// holds as long as it lasts: PageCost, or 0 of a stream that waits for events.
func (x *Exchange) Stream(page int64) *problem.Problem {
	if page > x.rows && !x.charge.Acquire(page-x.rows) {
		return problem.OutOfMemory()
	}
	x.charge.Release(max(x.rows-page, 0))
	x.rows = page
	x.slot.release()
	x.answer.through = true
	return nil
}

// OpenStream begins a stream of the log, and counts it. page is as for Stream. end must be called once.
func (e *Edge) OpenStream(x *Exchange, page int64) (end func(), p *problem.Problem) {
	var own *admission.Counter
	if x.tenant != nil {
		own = &x.tenant.Streams
	}
	if !e.streams.Acquire(1, own) {
		if own != nil && own.Load() > 0 {
			return nil, problem.OverShare("The tenant has reached its limit of open streams of the log; end one of them")
		}
		return nil, problem.New("overloaded", "Too many streams of the log are open; retry later")
	}
	if p := x.Stream(page); p != nil {
		e.streams.Release(1, own)
		return nil, p
	}
	return func() { e.streams.Release(1, own) }, nil
}
