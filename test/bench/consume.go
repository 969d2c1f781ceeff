package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Features of consumptions: one whose limit is never reached, and one whose limit is 0.
const (
	wideFeature = "bench_tokens"
	doneFeature = "bench_reached"
)

// wideLimit is a limit that no load reaches.
const wideLimit = 1 << 52

// seedQuotas gives the tenants of the load two QUOTA features with HARD limits, and keys that may consume.
func (s *subject) seedQuotas(ctx context.Context) error {
	a := &api{s.urls[0], s.operator, http.DefaultClient}
	plan := []any{map[string]any{"feature": s.feature, "limit": nil, "limitBehavior": "SOFT", "resetPeriod": "MONTHLY"}}
	for feature, limit := range map[string]int64{wideFeature: wideLimit, doneFeature: 0} {
		if err := a.call(ctx, "PUT", "/features/"+feature, map[string]string{"name": "Benchmark", "type": "QUOTA"}, nil); err != nil {
			return err
		}
		plan = append(plan, map[string]any{"feature": feature, "limit": limit, "limitBehavior": "HARD", "resetPeriod": "MONTHLY"})
	}
	if err := a.call(ctx, "PUT", "/plans/"+benchPlan, map[string]any{"name": "Benchmark", "entitlements": plan}, nil); err != nil {
		return err
	}
	for i := range s.tenants {
		t := &s.tenants[i]
		path := "/tenants/" + t.id.String()
		var held struct{ Data []struct{ ID string } }
		if err := a.call(ctx, "GET", path+"/subscriptions", nil, &held); err != nil {
			return err
		}
		if err := a.call(ctx, "PATCH", path+"/subscriptions/"+held.Data[0].ID, map[string]string{"plan": benchPlan}, nil); err != nil {
			return err
		}
		var err error
		if t.secret, err = a.newKey(ctx, t.id, []string{"usage:write", "usage:read", "entitlements:read", "entitlements:reserve"},
			time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

// consumptions are B7a, B7c and B7d, of an instance that only ingests; B7b of one with all roles.
func (r *run) consumptions(ctx context.Context, s *subject) error {
	if err := s.seedQuotas(ctx); err != nil {
		return err
	}
	ids := []string{"B7a", "B7c"}
	if s.roles == "all" {
		ids = []string{"B7b"}
	}
	for _, id := range ids {
		feature, status := wideFeature, http.StatusOK
		if id == "B7c" {
			feature, status = doneFeature, http.StatusConflict
		}
		one := s.target
		one.tenants = s.tenants[:1]
		l, err := one.newConsumeLoad(ctx, singleClients, feature, status)
		if err != nil {
			return err
		}
		f, bare := figureB7(id), (*constantLoad)(nil)
		plain := func() (float64, error) { return r.plain(ctx, &one) }
		if id == "B7c" {
			if bare, err = r.newConstantLoad(ctx, &one); err != nil {
				l.close()
				return err
			}
			plain = bare.before(ctx, plain)
		}
		consume := func() (rate, error) { return closed(ctx, singleClients, r.times.round, l.send) }
		if s.roles == "all" {
			plain, consume = untilSettled(ctx, s, plain), untilSettled(ctx, s, consume)
		} else {
			plain = s.published(ctx, plain)
		}
		err = r.pair(ctx, &f, plain, consume)
		l.close()
		bare.close(&f)
		if err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
		r.addFigure(f)
	}
	if s.roles == "all" {
		return nil
	}
	return r.reservations(ctx, s)
}

// untilSettled lets a load wait until its events are folded, so that the next one does not compete with them.
func untilSettled[T any](ctx context.Context, s *subject, load func() (T, error)) func() (T, error) {
	return func() (T, error) {
		did, err := load()
		if err == nil {
			err = s.settled(ctx)
		}
		return did, err
	}
}

// reservations is B7d.
func (r *run) reservations(ctx context.Context, s *subject) error {
	one := s.target
	one.tenants = s.tenants[:1]
	p, err := one.newPairs(ctx, singleClients, wideFeature)
	if err != nil {
		return err
	}
	defer p.close()
	f := figureB7("B7d")
	if err := r.pair(ctx, &f, s.published(ctx, func() (float64, error) { return r.plain(ctx, &one) }),
		func() (rate, error) { return closed(ctx, singleClients, r.times.round, p.send) }); err != nil {
		return fmt.Errorf("B7d: %w", err)
	}
	h, did, err := openOver(pairsPaced, r.times.paced, singleClients, func(client, _ int) error {
		_, err := p.send(client)
		return err
	}).run(ctx)
	if err != nil {
		return fmt.Errorf("B7d: %w", err)
	}
	f.Latency, f.LatencyAt = latencyOf(h), fmt.Sprintf("of a pair, at %d pairs/s", pairsPaced)
	if did.refused > 0 {
		f.note("refused at that rate", fmt.Sprint(did.refused))
	}
	r.addFigure(f)
	return nil
}

// pairsPaced is the rate at which the latency of pairs is measured.
const pairsPaced = 1000

// plain sends single usage events of the same tenant in the same way: the limit of consumptions.
func (r *run) plain(ctx context.Context, t *target) (float64, error) {
	l, err := t.newIngestLoad(ctx, singleClients, 1, r.cfg.Now())
	if err != nil {
		return 0, err
	}
	defer l.close()
	did, err := closed(ctx, singleClients, r.times.round, l.send)
	return did.perSecond(), err
}

// newConsumeLoad consumes one unit of a feature in each request; status is the expected answer.
func (t *target) newConsumeLoad(ctx context.Context, clients int, feature string, status int) (*load, error) {
	return t.newLoad(ctx, clients, func(url string) (*message, error) {
		prefix := strings.ToLower(rand.Text()[:12])
		body := fmt.Sprintf(`{"eventId":"%s-%0*d","amount":1}`, prefix, idDigits, 0)
		m, err := newMessage(url, t, "POST", "/entitlements/"+feature+"/consume", body)
		if err != nil {
			return nil, err
		}
		m.ids, m.status = []int{bytes.Index(m.raw, []byte(prefix)) + len(prefix) + 1}, status
		return m, nil
	})
}
