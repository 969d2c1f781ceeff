package kafka

import (
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
)

// The headers of a record are those of the client: both types have the same fields, or this does not compile. A copy
// was 360 bytes for each record, sent or received.
var _ = [1]kgo.RecordHeader{kgo.RecordHeader(events.Header{})}

func clientHeaders(list []events.Header) []kgo.RecordHeader {
	return unsafe.Slice((*kgo.RecordHeader)(unsafe.Pointer(unsafe.SliceData(list))), len(list))
}

func headersOf(list []kgo.RecordHeader) []events.Header {
	return unsafe.Slice((*events.Header)(unsafe.Pointer(unsafe.SliceData(list))), len(list))
}
