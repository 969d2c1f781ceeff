package admission

// Bounds of one tenant, so that its slow or many requests leave room for those of the others.
const (
	tenantIngests = maxIngests / 2
	tenantOthers  = maxOthers / 4
	tenantStreams = 4
)

// Streams of the log that clients hold open. A stream costs a connection and a query every
// tenth of a second, so that there are few.
const (
	maxStreams      = 64
	operatorStreams = 8 // reserved for operators: tenants share the others
)

// Tenant counts the resources that the requests of one tenant hold at the moment.
type Tenant struct {
	Memory  Counter // bytes
	Ingests Counter // ingest requests
	Others  Counter // all other requests, also those that wait for their body
	Streams Counter // streams of the log
}

// any reports whether the tenant's requests hold anything.
func (t *Tenant) any() bool {
	return t.Memory.Load() != 0 || t.Ingests.Load() != 0 || t.Others.Load() != 0 || t.Streams.Load() != 0
}
