package commands

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// storedAnswer is a transaction with an answer.
type storedAnswer struct {
	Answers
	answer Answer
}

func (s storedAnswer) Answer(string) (*Answer, error) { return &s.answer, nil }

// Another change may store the answer after the first attempt, which was rolled back: nothing of that attempt is answered.
func TestAnAnswerStoredMeanwhileReplacesTheDecision(t *testing.T) {
	type answer struct {
		Shown  int
		Secret int `json:"-"`
	}
	got, key := answer{1, 2}, Idempotency{Key: "k", RequestHash: [32]byte{1}}
	repeated, err := Repeat(storedAnswer{answer: Answer{key.RequestHash, []byte(`{"Shown":7}`)}}, "k", &key, &got)
	if err != nil || !repeated || got != (answer{7, 0}) {
		t.Fatalf("%+v, %v, %v", got, repeated, err)
	}
}

// residencies is a transaction that keeps the appended events, with the data residency of each tenant.
type residencies struct {
	Tx
	of       map[uuid.UUID]string
	appended []events.Pending
}

func (r *residencies) Tenant(id uuid.UUID) (*domain.Tenant, error) {
	if of, known := r.of[id]; known {
		return &domain.Tenant{ID: id, DataResidency: of}, nil
	}
	return nil, nil
}

func (r *residencies) Append(list ...events.Pending) ([]events.Position, error) {
	r.appended = append(r.appended, list...)
	return make([]events.Position, len(list)), nil
}

func TestEventsHaveTheResidencyOfTheirTenant(t *testing.T) {
	eu, us := uuid.UUID{1}, uuid.UUID{2}
	tx := &residencies{of: map[uuid.UUID]string{eu: "eu-central-1", us: "us-east-1"}}
	var list []events.Pending
	for _, tenant := range []uuid.UUID{eu, events.Platform, us, eu} {
		list = append(list, events.Pending{TenantID: tenant})
	}
	if _, err := AppendAll(tx, list...); err != nil {
		t.Fatal(err)
	}
	var got string
	for i := range tx.appended {
		got += tx.appended[i].Residency + " "
	}
	if got != "eu-central-1  us-east-1 eu-central-1 " {
		t.Errorf("the events have the residencies %q", got)
	}
	_, err := AppendAll(tx, events.Pending{TenantID: uuid.UUID{3}})
	if refusal, ok := err.(*domain.Error); !ok || refusal.Code != "tenant_not_found" {
		t.Errorf("%v instead of tenant_not_found", err)
	}
}
