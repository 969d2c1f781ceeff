package edge

import "github.com/meterplex/meterplex/http/problem"

// OpenStream counts a stream of an admitted request against its tenant's share and all streams.
// end must be called once. Operators have no share: some streams are reserved for them.
func (e *Edge) OpenStream(x *Exchange) (end func(), p *problem.Problem) {
	full := problem.New("overloaded", "Too many streams of the log are open; retry later")
	holds := x.holds
	if holds == nil {
		if !e.streams.Enter(e.limits.Streams) {
			return nil, full
		}
		return e.streams.Leave, nil
	}
	if !holds.Streams.Enter(e.limits.TenantStreams) {
		return nil, problem.OverShare("The tenant has as many streams of the log open as one tenant may have; end one of them")
	}
	if !e.streams.Enter(e.limits.Streams - e.limits.OperatorStreams) {
		holds.Streams.Leave()
		return nil, full
	}
	return func() { e.streams.Leave(); holds.Streams.Leave() }, nil
}
