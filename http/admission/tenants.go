package admission

// Tenant counts the resources that the requests of one tenant hold at the moment.
type Tenant struct {
	Ingest, Other Holds   // of ingest requests, and of all others
	Streams       Counter // streams of the log
	Connections   Counter // requests that keep their connection open
}

// Holds counts the slots and bytes of a tenant's requests of one kind.
type Holds struct{ Slots, Memory Counter }

// any reports whether the tenant's requests hold anything.
func (t *Tenant) any() bool { return t.Ingest.any() || t.Other.any() || t.Streams.Load() != 0 }

func (h *Holds) any() bool { return h.Slots.Load() != 0 || h.Memory.Load() != 0 }
