package events

// Record is one event on a broker, or an offset at which no event could be read.
type Record struct {
	Topic     Topic
	Partition int16
	Offset    int64 // -1 if the broker returns no offset
	Key       []byte
	Value     []byte // the envelope in JSON; empty for a withheld record
	Headers   []Header
}

// Header is a record header.
type Header struct {
	Key   string
	Value []byte
}

// Record headers of this service. From them a consumer determines the position of a
// record without decoding its value. Numbers are decimal text.
const (
	HeaderSubject  = "mp-subject"  // type and version
	HeaderPosition = "mp-position" // 17-4711
	HeaderPrevious = "mp-previous" // number of the preceding event on the topic
	HeaderEpoch    = "mp-epoch"
	HeaderEventID  = "mp-event-id"
	HeaderLog      = "mp-log" // the log's id: two logs may share a broker by mistake
	HeaderTenant   = "mp-tenant"
	HeaderWithheld = "mp-withheld" // "1": replaces an event that could not be published
	HeaderReplay   = "mp-replay"   // "1": republished for outside readers; the service's consumers skip it
)

// Header returns the value of a header, nil if it is missing.
func (r *Record) Header(key string) []byte {
	for i := range r.Headers {
		if r.Headers[i].Key == key {
			return r.Headers[i].Value
		}
	}
	return nil
}
