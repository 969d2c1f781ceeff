package relay_test

import (
	"context"
	"testing"

	"github.com/meterplex/meterplex/infra/relay"
)

func woken(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A notification of this process comes back from the server. It proves that others arrive, and wakes no relay.
func TestANotifierHearsWhileItListens(t *testing.T) {
	w := newRelayFixture(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	if w.notify.Hearing() {
		t.Error("it hears before it listens")
	}
	reader := w.notify.Reader()
	go func() { ended <- w.notify.Run(ctx) }()
	w.until("it hears", w.notify.Hearing)
	if woken(w.notify.Wake()) || woken(reader) {
		t.Error("its own notification woke its readers")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if w.notify.Hearing() {
		t.Error("it hears after its end")
	}
}

func TestNotifierWakesOtherProcesses(t *testing.T) {
	w := newRelayFixture(t)
	other := relay.NewNotifier(openPool(t, w.url), quiet())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- w.notify.Run(ctx) }()
	go func() { ended <- other.Run(ctx) }()
	w.until("both hear", func() bool { return w.notify.Hearing() && other.Hearing() })
	reader := other.Reader()
	w.notify.Appended(nil)
	w.until("the other relay is woken", func() bool { return woken(other.Wake()) })
	w.until("another reader there, too", func() bool { return woken(reader) })
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
