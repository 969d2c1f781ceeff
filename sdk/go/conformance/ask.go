package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/sdk/go"
	"github.com/meterplex/meterplex/sdk/go/internal/queue"
)

// readQueue reads the dead queues of a directory as a client does.
func readQueue(path string) (any, error) {
	ids, damaged := []string{}, []queue.Damage{}
	dir := &queue.Dir{Path: path, OnDamage: func(d queue.Damage) {
		if d.Bytes > 0 {
			damaged = append(damaged, d)
		}
	}}
	taken, err := dir.TakeOver()
	for _, q := range taken {
		for {
			events, err := q.Read(1000, 1<<20)
			if err != nil {
				return nil, err
			}
			if len(events) == 0 {
				break
			}
			for _, bytes := range events {
				var e meterplex.Event
				if err := json.Unmarshal(bytes, &e); err != nil {
					return nil, err
				}
				ids = append(ids, e.EventID)
			}
			q.Settle(events)
		}
		q.Close()
	}
	return object{"eventIds": ids, "damaged": damaged}, err
}

func vector(r *request) (any, error) {
	switch r.Do {
	case "eventId":
		at, err := time.Parse(time.RFC3339Nano, r.OccurredAt)
		if err != nil {
			return nil, err
		}
		id, err := meterplex.EventID(r.Tenant, r.Feature, r.Resource, at)
		return object{"eventId": id}, err
	case "amount":
		n, err := meterplex.Amount(r.Decimal, r.Unit, r.Scale)
		return object{"amount": strconv.FormatInt(n, 10)}, err
	}
	var e meterplex.Event
	if err := json.Unmarshal(r.Event, &e); err != nil {
		return nil, err
	}
	text, err := e.Canonical()
	return object{"canonical": string(text)}, err
}

// ask sends a request to the service.
func (p *program) ask(ctx context.Context, r *request) (any, error) {
	amount, err := strconv.ParseInt(r.Amount, 10, 64)
	if r.Amount != "" && err != nil {
		return nil, err
	}
	ttl := time.Duration(r.TTLSeconds) * time.Second
	c := p.client
	switch r.Do {
	case "check":
		return check(c.Check(ctx, meterplex.CheckRequest{Feature: r.Feature, Amount: amount, MinPosition: r.MinPosition,
			Wait: time.Duration(r.Wait * float64(time.Second))}))
	case "consume":
		done, err := c.Consume(ctx, meterplex.ConsumeRequest{Feature: r.Feature, Amount: amount, EventID: r.EventID, Metadata: r.Metadata})
		if err != nil {
			return nil, err
		}
		return done.JSON, nil
	case "reserve":
		return held(c.Reserve(ctx, meterplex.ReserveRequest{Feature: r.Feature, Amount: amount, ReservationID: r.ReservationID, TTL: ttl}))
	case "extend":
		return held(c.Extend(ctx, r.Feature, r.ReservationID, ttl))
	case "release":
		return held(c.Release(ctx, r.Feature, r.ReservationID))
	case "commit":
		return committed(c.Commit(ctx, meterplex.CommitRequest{Feature: r.Feature, ReservationID: r.ReservationID, Amount: amount,
			EventID: r.EventID, Overage: r.Overage == "record"}))
	case "withReservation":
		actual, _ := strconv.ParseInt(r.Actual, 10, 64)
		return committed(c.WithReservation(ctx, meterplex.ReserveRequest{Feature: r.Feature, Amount: amount, ReservationID: r.ReservationID,
			TTL: ttl}, func(context.Context) (int64, error) {
			if r.Fail {
				return 0, errCallback
			}
			return actual, nil
		}))
	}
	return p.read(ctx, r)
}

func check(answer *meterplex.Check, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	rest := any(nil)
	if answer.Remaining != nil {
		rest = strconv.FormatInt(*answer.Remaining, 10)
	}
	return object{"allowed": answer.Allowed, "source": answer.Source, "remaining": rest, "reason": answer.Reason,
		"asOfPosition": answer.AsOfPosition}, nil
}

func held(answer *meterplex.Reservation, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return answer.JSON, nil
}

func committed(answer *meterplex.Commitment, err error) (any, error) {
	if answer == nil {
		return nil, err
	}
	return answer.JSON, err
}

func (p *program) read(ctx context.Context, r *request) (any, error) {
	q := query(r)
	switch c := p.client; r.Do {
	case "aggregates":
		return rows(c.Aggregates(ctx, q), func(a meterplex.Aggregate) json.RawMessage { return a.JSON })
	case "usage":
		return rows(c.Usage(ctx, q), func(b meterplex.Bucket) json.RawMessage { return b.JSON })
	case "usageEvents":
		return rows(c.Events(ctx, q), func(e meterplex.UsageEvent) json.RawMessage { return e.JSON })
	case "entitlements":
		return rows(c.Entitlements(ctx, q), func(e meterplex.Check) json.RawMessage { return e.JSON })
	case "reservations":
		return rows(c.Reservations(ctx, q), func(x meterplex.Reservation) json.RawMessage { return x.JSON })
	case "receipt":
		receipt, err := c.Receipt(ctx, r.EventID, q)
		if err != nil {
			return nil, err
		}
		return receipt.JSON, nil
	}
	return nil, fmt.Errorf("%q is not a request", r.Do)
}

// query reads the parameters of the service's routes, as texts or numbers.
func query(r *request) meterplex.Query {
	text := func(name string) (value string) {
		raw := r.Query[name]
		if json.Unmarshal(raw, &value) != nil {
			value = string(raw)
		}
		return value
	}
	at := func(name string) time.Time {
		t, _ := time.Parse(time.RFC3339Nano, text(name))
		return t
	}
	q := meterplex.Query{Feature: text("feature"), Period: text("period"), AsOfPosition: text("asOfPosition"), AsOf: at("asOf"),
		Status: text("status"), State: text("state"),
		From: at("from"), To: at("to"), Granularity: text("granularity"), TenantID: text("tenantId"), MinPosition: text("minPosition")}
	q.PageSize, _ = strconv.Atoi(text("limit"))
	wait := r.Wait
	if raw := r.Query["wait"]; raw != nil {
		wait, _ = strconv.ParseFloat(text("wait"), 64)
	}
	q.Wait = time.Duration(wait * float64(time.Second))
	if by := text("groupBy"); by != "" {
		if json.Unmarshal(r.Query["groupBy"], &q.GroupBy) != nil {
			q.GroupBy = []string{by}
		}
	}
	return q
}

func rows[T any](all iter.Seq2[T, error], whole func(T) json.RawMessage) (any, error) {
	list := []json.RawMessage{}
	for one, err := range all {
		if err != nil {
			return nil, err
		}
		list = append(list, whole(one))
	}
	return object{"rows": list}, nil
}
