package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Catalogue changes tenants, keys, features, plans and subscriptions. Each change
// is an event in the log, appended in the transaction of the change. Each noun has
// its own file of methods.
type Catalogue struct {
	Store     Store
	Now       Clock
	NewID     func() uuid.UUID
	NewSecret func() [32]byte // 256 random bits
	Region    string          // of the deployment: the default data residency of new tenants
}

// maxName bounds display names, in characters.
const maxName = 200

func refuse(code, pointer, format string, args ...any) *domain.Error {
	return &domain.Error{Code: code, Message: fmt.Sprintf(format, args...), Pointer: pointer}
}

func checkName(name string) error {
	if strings.TrimSpace(name) == "" || utf8.RuneCountInString(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return refuse("name_invalid", "/name", "name must be 1 to %d characters of text without control characters", maxName)
	}
	return nil
}

func oneOf(value, code, pointer string, allowed ...string) error {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return refuse(code, pointer, "%s must be one of %s", strings.TrimPrefix(pointer, "/"), strings.Join(allowed, ", "))
}

// now returns the time with the precision of the log.
func (c *Catalogue) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

// record appends a change as an event of the tenant.
func (c *Catalogue) record(tx Tx, by Caller, once Once, tenant uuid.UUID, subject events.Subject, payload any) (events.Position, error) {
	return appendEvent(tx, c.NewID(), c.now(), by, once, tenant, subject, payload)
}

func appendEvent(tx Tx, id uuid.UUID, now time.Time, by Caller, once Once, tenant uuid.UUID, subject events.Subject, payload any) (events.Position, error) {
	return appendAs(tx, id, now, by.actor(), by, once, tenant, subject, payload)
}

func appendAs(tx Tx, id uuid.UUID, now time.Time, actor events.Actor, by Caller, once Once, tenant uuid.UUID, subject events.Subject, payload any) (events.Position, error) {
	body, err := events.EncodePayload(subject, payload)
	if err != nil {
		return events.Position{}, err
	}
	p := []events.Pending{{
		EventID: id, Subject: subject, TenantID: tenant, DedupeKey: events.KeyEvent(id),
		CorrelationID: by.CorrelationID, Actor: actor, OccurredAt: now, Payload: body,
	}}
	if once.Key != "" {
		p[0].DedupeKey = events.KeyCommand(by.KeyID.String() + "/" + once.Key)
	}
	if err := underResidency(tx, p); err != nil {
		return events.Position{}, err
	}
	return tx.Append(p[0])
}

// change runs decide once for each Idempotency-Key. A repetition returns the first
// answer; a different request with the same key is refused.
func change[T any](ctx context.Context, store Store, tenant uuid.UUID, by Caller, once Once, decide func(Tx) (T, error)) (result T, repeated bool, err error) {
	key := by.KeyID.String() + "/" + once.Key // a key's holder shares no space with others
	err = store.Change(ctx, tenant, func(tx Tx) error {
		if once.Key != "" {
			first, err := tx.Answer(key)
			if err != nil {
				return err
			}
			if first != nil {
				repeated = true
				return repeat(first, once, &result)
			}
		}
		if result, err = decide(tx); err != nil || once.Key == "" {
			return err
		}
		body, err := json.Marshal(result)
		if err != nil {
			return fmt.Errorf("encoding an answer: %w", err)
		}
		return tx.SaveAnswer(key, Answer{once.RequestHash, body})
	})
	return result, repeated, err
}

func repeat(first *Answer, once Once, result any) error {
	if first.RequestHash != once.RequestHash {
		return refuse("idempotency_key_reused", "", "this Idempotency-Key was first used with another request; use a new one")
	}
	if err := json.Unmarshal(first.Body, result); err != nil {
		return fmt.Errorf("decoding a stored answer: %w", err)
	}
	return nil
}

// changeOne is change without the report whether the call is a repetition.
func changeOne[T any](ctx context.Context, store Store, tenant uuid.UUID, by Caller, once Once, decide func(Tx) (T, error)) (T, error) {
	result, _, err := change(ctx, store, tenant, by, once, decide)
	return result, err
}
