package eventlog

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
)

// One key acts by the API and by the console, even in one submission: each event has its own way, and a new process
// reads it.
func TestAnEventNamesTheWayOfItsAction(t *testing.T) {
	l, pool, url := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	byConsole := func(id string) commands.Submitted {
		e := usageEvent(tenant, id, 1)
		e.Actor.Via = events.ViaConsole
		return e
	}
	submit(t, l, tenant, usageEvent(tenant, "a", 1), byConsole("b"), usageEvent(tenant, "c", 1))
	submit(t, l, tenant, byConsole("d"))
	wires, err := rendered(t, url, tenant)
	if err != nil {
		t.Fatal(err)
	}
	const api, console = `"actor":{"type":"api_key","id":"k"},`, `"actor":{"type":"api_key","id":"k","via":"console"},`
	for i, want := range []string{api, console, api, console} {
		if !strings.Contains(wires[i], want) {
			t.Errorf("event %d is %s\nwant %s", i, wires[i], want)
		}
	}
	if n := count(t, pool, `SELECT count(*) FROM log_origins`); n != 2 {
		t.Errorf("%d origins, want one for each way", n)
	}
	forged := byConsole("e")
	forged.Actor.Via = `console","id":"x`
	if _, err := l.Submit(t.Context(), tenant, []commands.Submitted{forged}); err == nil {
		t.Error("a way that is not a name was recorded")
	}
	if again, err := rendered(t, url, tenant); err != nil || !slices.Equal(again, wires) {
		t.Errorf("%v: the log changed to %v", err, again)
	}
}
