package node

import (
	"context"
	"io"
	"log/slog"
	nethttp "net/http"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// TestAShutdownEndsRequestsThatOutlastIt: a request that is open for longer than the shutdown waits is ended, and the shutdown
// succeeds.
func TestAShutdownEndsRequestsThatOutlastIt(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	handler := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		defer close(ended)
		_ = nethttp.NewResponseController(w).Flush()
		close(began)
		<-r.Context().Done()
	})
	var logged strings.Builder
	n := &Node{logger: slog.New(slog.NewTextHandler(&logged, nil))}
	e, err := n.listen("METERPLEX_HTTP_ADDR", "127.0.0.1:0", handler)
	must.OK(t, err)
	e.patience = 50 * time.Millisecond
	served := make(chan error, 1)
	go func() { served <- e.serve() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := make(chan error, 1)
	go func() {
		r, err := nethttp.NewRequestWithContext(ctx, nethttp.MethodGet, e.url, nil)
		if err != nil {
			asked <- err
			return
		}
		answer, err := nethttp.DefaultClient.Do(r)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		asked <- err
	}()
	<-began
	if err := e.shut(); err != nil {
		t.Errorf("the shutdown fails: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the request goes on after the shutdown")
	}
	if err := <-asked; err == nil {
		t.Error("the client got a whole answer")
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if !strings.Contains(logged.String(), "requests=1") {
		t.Errorf("the log does not count the ended request: %s", logged.String())
	}
}

// TestAShutdownWaitsForOpenRequests: a request that ends in time gets its answer.
func TestAShutdownWaitsForOpenRequests(t *testing.T) {
	began := make(chan struct{})
	var logged strings.Builder
	n := &Node{logger: slog.New(slog.NewTextHandler(&logged, nil))}
	var e *endpoint
	e, err := n.listen("METERPLEX_HTTP_ADDR", "127.0.0.1:0", nethttp.HandlerFunc(func(w nethttp.ResponseWriter, _ *nethttp.Request) {
		leaving := make(chan struct{})
		e.server.RegisterOnShutdown(func() { close(leaving) })
		close(began)
		<-leaving
		_, _ = io.WriteString(w, "whole")
	}))
	must.OK(t, err)
	go func() { _ = e.serve() }()
	answered := make(chan string, 1)
	go func() {
		var text []byte
		if answer, err := nethttp.Get(e.url); err == nil {
			text, _ = io.ReadAll(answer.Body)
			_ = answer.Body.Close()
		}
		answered <- string(text)
	}()
	<-began
	if err := e.shut(); err != nil {
		t.Error(err)
	}
	if got := <-answered; got != "whole" || logged.Len() > 0 {
		t.Errorf("the answer is %q, the log %s", got, logged.String())
	}
}
