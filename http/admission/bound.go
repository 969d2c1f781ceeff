package admission

// Bound is one resource of an instance. A tenant may hold at most half of the units that the other requests and the
// operators' reserve leave. Each further tenant finds fewer free units, but always some. The shares of several tenants become equal once
// they return their units: n tenants hold n/(n+1) of the resource.
type Bound struct {
	Counter       // of the units in use
	limit   int64 // of all requests
	reserve int64 // for operators, which have no share
	each    int64 // the maximum of one tenant; 0: its share only
}

// operatorsPart is the part of a resource that tenants leave to operators: an eighth.
const operatorsPart = 8

// Acquire takes n units if they are free. own counts the units of the request's tenant; nil: it is an operator's. A refused request
// is never counted among those of all, not even briefly: others would be refused because of it.
func (b *Bound) Acquire(n int64, own *Counter) bool {
	if own != nil {
		own.n.Add(n)
	}
	for {
		used := b.n.Load()
		if !b.allows(used+n, own, 0) {
			if own != nil {
				own.n.Add(-n)
			}
			return false
		}
		if b.n.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Fits reports whether Acquire(n, own) would succeed, without acquiring them.
func (b *Bound) Fits(n int64, own *Counter) bool { return b.allows(b.n.Load()+n, own, n) }

// allows reports whether so many units may be in use. own counts those of the tenant, more are added to them.
func (b *Bound) allows(used int64, own *Counter, more int64) bool {
	if own == nil {
		return used <= b.limit
	}
	holds := own.n.Load() + more
	return holds <= b.limit-b.reserve-used && (b.each == 0 || holds <= b.each)
}

// Release returns n units.
func (b *Bound) Release(n int64, own *Counter) {
	b.n.Add(-n)
	if own != nil {
		own.n.Add(-n)
	}
}
