package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
)

// pairs hold an amount and commit it: two requests, of which the second follows the answer to the first.
type pairs struct{ holds, commits *load }

func (p *pairs) close() {
	p.holds.close()
	p.commits.close()
}

// send makes one pair.
func (p *pairs) send(client int) (int, error) {
	if _, err := p.holds.send(client); err != nil {
		return 0, err
	}
	// The same tenant and id, also after a refused hold.
	p.commits.turns[client] = p.holds.turns[client] - 1
	p.commits.requests[client].count = p.holds.requests[client].count
	return p.commits.send(client)
}

// newPairs returns pairs about one unit of a feature each.
func (t *target) newPairs(ctx context.Context, clients int, feature string) (*pairs, error) {
	prefixes := make([]string, clients)
	for i := range prefixes {
		prefixes[i] = strings.ToLower(rand.Text()[:12])
	}
	path, none := "/entitlements/"+feature+"/reservations", fmt.Sprintf("%0*d", idDigits, 0)
	next := 0
	holds, err := t.newLoad(ctx, clients, func(url string) (*message, error) {
		prefix := prefixes[next]
		next++
		m, err := newMessage(url, t, "POST", path, `{"reservationId":"`+prefix+`-`+none+`","amount":1,"ttlSeconds":3600}`)
		if err != nil {
			return nil, err
		}
		m.ids, m.status = []int{bytes.Index(m.raw, []byte(prefix)) + len(prefix) + 1}, http.StatusCreated
		return m, nil
	})
	if err != nil {
		return nil, err
	}
	next = 0
	commits, err := t.newLoad(ctx, clients, func(url string) (*message, error) {
		prefix := prefixes[next]
		next++
		m, err := newMessage(url, t, "POST", path+"/"+prefix+"-"+none+"/commit", `{"eventId":"`+prefix+`-`+none+`","amount":1}`)
		if err != nil {
			return nil, err
		}
		m.what, m.given = "POST "+path+"/…/commit", true
		m.ids = []int{bytes.Index(m.raw, []byte(prefix)) + len(prefix) + 1, bytes.LastIndex(m.raw, []byte(prefix)) + len(prefix) + 1}
		return m, nil
	})
	if err != nil {
		holds.close()
		return nil, err
	}
	return &pairs{holds, commits}, nil
}

// Reserve holds amounts and commits them; a figure counts pairs.
func (m *Remote) Reserve(ctx context.Context) (*Outcome, error) {
	m.quota = true
	t, err := m.target(ctx)
	if err != nil {
		return nil, err
	}
	p, err := t.newPairs(ctx, m.Clients, t.feature)
	if err != nil {
		return nil, err
	}
	defer p.close()
	return m.measure(ctx, p.holds, p.send)
}
