package admission

// Bound is one resource of an instance. Tenants leave a reserve of it to operators, and operators leave as much to tenants. A tenant may
// hold at most half of the units that the other requests and the rest of the operators' reserve leave. Each further tenant finds fewer
// free units, but always some. The shares of several tenants become equal once they return their units: n tenants hold n/(n+1) of the
// resource.
type Bound struct {
	Counter           // of the units in use
	operators Counter // those of them that operators hold, all together: they have no shares
	limit     int64   // of all requests
	reserve   int64   // of operators, and of tenants
	each      int64   // the maximum of one tenant; 0: its share only
}

// reservedPart is the part of a resource that tenants leave to operators, and operators to tenants: an eighth.
const reservedPart = 8

// BoundOf returns a bound without a reserve.
func BoundOf(limit int64) Bound { return Bound{limit: limit} }

// Acquire takes n units if they are free. own counts the units of the request's tenant; nil: it is an operator's. A refused request
// is never counted among those of all, not even briefly: others would be refused because of it.
func (b *Bound) Acquire(n int64, own *Counter) bool {
	if own == nil {
		own = &b.operators
	}
	own.n.Add(n)
	for {
		used := b.n.Load()
		if !b.allows(used+n, own, 0) {
			own.n.Add(-n)
			return false
		}
		if b.n.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Fits reports whether Acquire(n, own) would succeed, without acquiring them.
func (b *Bound) Fits(n int64, own *Counter) bool {
	if own == nil {
		own = &b.operators
	}
	return b.allows(b.n.Load()+n, own, n)
}

// allows reports whether so many units may be in use. own counts those of the tenant, or of operators; more are added to them.
func (b *Bound) allows(used int64, own *Counter, more int64) bool {
	holds := own.n.Load() + more
	if own == &b.operators {
		return holds <= b.limit-b.reserve && used <= b.limit
	}
	reserved := max(b.reserve-b.operators.n.Load(), 0)
	return holds <= b.limit-reserved-used && (b.each == 0 || holds <= b.each)
}

// Release returns n units.
func (b *Bound) Release(n int64, own *Counter) {
	if own == nil {
		own = &b.operators
	}
	b.n.Add(-n)
	own.n.Add(-n)
}
