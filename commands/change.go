package commands

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Transaction runs decide in one transaction of a store. An error of decide rolls back.
type Transaction[T any] func(decide func(T) error) error

// Change runs decide once for each Idempotency-Key, unless the state is not that of the
// request's condition. A repetition returns the first answer, whatever the state is now; a
// different request with the same key is refused.
func Change[T Answers, R any](in Transaction[T], req Request, decide func(T) (R, error)) (result R, err error) {
	err = in(func(tx T) error {
		repeated, err := Repeat(tx, req.Key(), &req.Idempotency, &result)
		if repeated || err != nil {
			return err
		}
		if err := req.If.check(tx); err != nil {
			return err
		}
		if result, err = decide(tx); err != nil {
			return err
		}
		return Save(tx, req.Key(), &req.Idempotency, result)
	})
	return result, err
}

// Repeat decodes the first answer under a key. It reports false without one, and
// refuses an answer to another request, and one that is no longer kept.
func Repeat[R any](tx Answers, key string, sent *Idempotency, result *R) (repeated bool, err error) {
	if sent.Key == "" {
		return false, nil
	}
	first, err := tx.Answer(key)
	if err != nil || first == nil {
		return false, err
	}
	if first.RequestHash != sent.RequestHash {
		return false, domain.Refuse("idempotency_key_reused", "", "this Idempotency-Key was first used with another request; use a new one")
	}
	if first.Body == nil {
		return false, domain.Refuse("idempotency_answer_expired", "",
			"the request with this Idempotency-Key took effect, and its answer is no longer kept; list the resources to find its "+
				"result, or repeat it under a new key")
	}
	var answer R // not *result, which may hold the members of an attempt that was rolled back
	if err := json.Unmarshal(first.Body, &answer); err != nil {
		return false, fmt.Errorf("decoding a stored answer: %w", err)
	}
	*result = answer
	return true, nil
}

// Save stores an answer under a key, unless the caller sent no Idempotency-Key.
func Save(tx Answers, key string, sent *Idempotency, result any) error {
	if sent.Key == "" {
		return nil
	}
	body, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("encoding an answer: %w", err)
	}
	return tx.SaveAnswer(key, Answer{sent.RequestHash, body})
}

// AppendEvent appends an event that the request causes, and returns its position.
func AppendEvent(tx Tx, req *Request, id uuid.UUID, at time.Time, tenant uuid.UUID, subject events.Subject, payload any) (events.Position,
	error) {
	p, err := req.Event(id, at, tenant, subject, payload)
	if err != nil {
		return events.Position{}, err
	}
	return AppendOne(tx, p)
}

// AppendOne appends one event, as AppendAll does.
func AppendOne(tx Tx, p events.Pending) (events.Position, error) {
	positions, err := AppendAll(tx, p)
	if err != nil {
		return events.Position{}, err
	}
	return positions[0], nil
}

// AppendAll appends events. It sets the data residency of tenants' events, but not of
// platform events, to the tenant's residency in the transaction that appends them.
func AppendAll(tx Tx, list ...events.Pending) ([]events.Position, error) {
	var last *domain.Tenant
	for i := range list {
		p := &list[i]
		if p.TenantID == events.Platform {
			continue
		}
		if last == nil || last.ID != p.TenantID {
			var err error
			if last, err = LoadTenant(tx, p.TenantID); err != nil {
				return nil, err
			}
		}
		p.Residency = last.DataResidency
	}
	return tx.Append(list...)
}
