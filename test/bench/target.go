package main

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/events"
)

// target is a service under load, with the tenants of the load.
type target struct {
	urls     []string // of its instances; connections are spread over them
	operator string
	feature  string
	tenants  []tenant
	whale    float64 // the first tenant's share of the requests; 0: all shares are equal
}

// operatorAPI returns a client of the first instance with the operator's key.
func (t *target) operatorAPI() *api { return &api{t.urls[0], t.operator, http.DefaultClient} }

// pick returns the tenant of a client's n-th request. Each client begins at another place
// in the list, so that they do not all write to one partition at a time.
func (t *target) pick(client, clients, n int) int {
	all := len(t.tenants)
	if t.whale == 0 || all == 1 {
		return (client*all/clients + n) % all
	}
	before := math.Floor(float64(n) * t.whale)
	if math.Floor(float64(n+1)*t.whale) > before {
		return 0
	}
	all--
	return 1 + (client*all/clients+n-int(before))%all
}

// load sends requests over a number of connections.
type load struct {
	target   *target
	wires    []*wire
	requests []*message
	turns    []int
	last     []int // the tenant of each client's last request
	close    func()
	// accepted, if set, receives the last position of each answer.
	accepted func(tenant int, p events.Position)
}

// newLoad opens the connections. Each client has its own message.
func (t *target) newLoad(ctx context.Context, clients int, message func(url string) (*message, error)) (*load, error) {
	wires, closeAll, err := dialAll(ctx, t.urls, clients)
	if err != nil {
		return nil, err
	}
	l := &load{target: t, wires: wires, turns: make([]int, clients), last: make([]int, clients), close: closeAll}
	for client := range clients {
		m, err := message(t.urls[client%len(t.urls)])
		if err != nil {
			closeAll()
			return nil, err
		}
		l.requests = append(l.requests, m)
	}
	return l, nil
}

// newIngestLoad sends batches of usage.
func (t *target) newIngestLoad(ctx context.Context, clients, size int, now time.Time) (*load, error) {
	return t.newLoad(ctx, clients, func(url string) (*message, error) { return newBatch(url, t, size, now) })
}

// newCorrectedLoad sends batches of usage with corrections.
func (t *target) newCorrectedLoad(ctx context.Context, clients, size int, now time.Time) (*load, error) {
	return t.newLoad(ctx, clients, func(url string) (*message, error) { return newCorrectedBatch(url, t, size, now) })
}

func (l *load) send(client int) (int, error) {
	m := l.requests[client]
	l.last[client] = l.target.pick(client, len(l.wires), l.turns[client])
	l.turns[client]++
	m.setTenant(&l.target.tenants[l.last[client]])
	err := l.wires[client].exchange(m)
	if _, refused := isRefusal(err); refused && m.refs != nil { // later requests name its events
		l.turns[client]--
		m.count -= len(m.ids)
	}
	if err == nil && l.accepted != nil {
		var p events.Position
		if p, err = l.wires[client].lastPosition(); err == nil {
			l.accepted(l.last[client], p)
		}
	}
	return m.size, err
}

// sendOne is send for a load of a given rate.
func (l *load) sendOne(client, _ int) error {
	_, err := l.send(client)
	return err
}

// refusal is an answer that asks to retry later. It is counted and does not end the load.
type refusal struct {
	status int
	after  time.Duration
}

func (r *refusal) Error() string { return "overloaded, retry later: " + http.StatusText(r.status) }

func isRefusal(err error) (*refusal, bool) { return errors.AsType[*refusal](err) }
