package events

import "testing"

// TestAnEventIsShownWithItsTrace: in the form of traceparent headers and collectors.
func TestAnEventIsShownWithItsTrace(t *testing.T) {
	for event, want := range map[string]string{
		`{"eventId":"e","correlationId":"4bf92f35-77b3-4da6-a3ce-929d0e0e4736"}` +
			"\n": `{"eventId":"e","correlationId":"4bf92f35-77b3-4da6-a3ce-929d0e0e4736","traceId":"4bf92f3577b34da6a3ce929d0e0e4736"}`,
		`{"eventId":"e","correlationId":null}`: `{"eventId":"e","correlationId":null}`,
		`["correlationId"]`:                    `["correlationId"]`,
	} {
		if got := string(withTrace([]byte(event))); got != want {
			t.Errorf("%s is shown as %s", event, got)
		}
	}
}
