package edge

import (
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/problem"
)

// Memory of the rows that an answer is made of.
const (
	rowCost  = 1 << 10        // of a page, for each
	pageCost = 1024 * rowCost // of an answer that is written page by page
)

// Stream begins an answer that is written page by page, while it is computed: from here on the request holds no place, and the memory of
// one page.
func (x *Exchange) Stream() *problem.Problem {
	if !x.charge.Acquire(pageCost - x.rows) {
		return problem.OutOfMemory()
	}
	x.rows = pageCost
	x.place.release()
	x.answer.through = true
	return nil
}

// OpenStream begins a stream of the log, and counts it. end must be called once.
func (e *Edge) OpenStream(x *Exchange) (end func(), p *problem.Problem) {
	var own *admission.Counter
	if x.tenant != nil {
		own = &x.tenant.Streams
	}
	if !e.streams.Acquire(1, own) {
		if own != nil && own.Load() > 0 {
			return nil, problem.OverShare("The tenant has as many streams of the log open as one tenant may have; end one of them")
		}
		return nil, problem.New("overloaded", "Too many streams of the log are open; retry later")
	}
	if p := x.Stream(); p != nil {
		e.streams.Release(1, own)
		return nil, p
	}
	return func() { e.streams.Release(1, own) }, nil
}
