package commands

import (
	"testing"

	"github.com/google/uuid"

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

func TestEventsHaveTheResidencyOfTheirTenant(t *testing.T) {
	m := newMemory()
	var got string
	if _, err := AppendAll(m, events.Pending{TenantID: activeTenant}, events.Pending{TenantID: events.Platform}, events.Pending{TenantID: suspendedTenant}, events.Pending{TenantID: activeTenant}); err != nil {
		t.Fatal(err)
	}
	for i := range m.appended {
		got += m.appended[i].Residency + " "
	}
	if got != "eu-central-1  us-east-1 eu-central-1 " {
		t.Errorf("the events have the residencies %q", got)
	}
	_, err := AppendAll(m, events.Pending{TenantID: uuid.New()})
	refusedWith(t, err, "tenant_not_found", "")
}
