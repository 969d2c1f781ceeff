package commands

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// counter counts the decisions of a change.
type counter struct {
	*memory
	decisions int
}

func (c *counter) call(req Request, fail error) ([]int, error) {
	in := func(decide func(Tx) error) error {
		return c.run(func() error { return decide(c.memory) })
	}
	return change(in, req, func(Tx) ([]int, error) {
		c.decisions++
		return []int{c.decisions}, fail
	})
}

func TestAChangeIsDecidedOnceForEachIdempotencyKey(t *testing.T) {
	c := &counter{memory: newMemory()}
	other := keyed(1)
	other.By.KeyID = uuid.MustParse("01900000-0000-7000-8000-0000000000cc")
	for _, step := range []struct {
		name string
		req  Request
		want int // the decision that is answered
		code string
	}{
		{"no key", Request{By: operator}, 1, ""},
		{"no key, again", Request{By: operator}, 2, ""},
		{"a key", keyed(1), 3, ""},
		{"a repetition", keyed(1), 3, ""},
		{"another request with the key", keyed(2), 0, "idempotency_key_reused"},
		{"the key of another caller", other, 4, ""},
		{"a repetition of the other caller", other, 4, ""},
	} {
		got, err := c.call(step.req, nil)
		if step.code != "" {
			refusedWith(t, err, step.code, "")
			continue
		}
		if err != nil || len(got) != 1 || got[0] != step.want {
			t.Errorf("%s: %v, %v", step.name, got, err)
		}
	}
	if len(c.answers) != 2 {
		t.Errorf("%d answers are stored", len(c.answers))
	}
}

func TestARefusedChangeStoresNoAnswer(t *testing.T) {
	c, fault := &counter{memory: newMemory()}, errors.New("no")
	if _, err := c.call(keyed(1), fault); !errors.Is(err, fault) || len(c.answers) > 0 {
		t.Fatalf("%v, %d answers", err, len(c.answers))
	}
	if got, err := c.call(keyed(1), nil); err != nil || got[0] != 2 {
		t.Fatalf("after a refusal: %v, %v", got, err)
	}
}

// Another change may store the answer after the first attempt, which was rolled back.
func TestAnAnswerStoredMeanwhileReplacesTheDecision(t *testing.T) {
	m := newMemory()
	type answer struct {
		Shown  int
		Secret int `json:"-"`
	}
	in := func(decide func(Tx) error) error {
		_ = m.run(func() error { return errors.Join(decide(m), errors.New("rolled back")) })
		m.answers[operator.KeyID.String()+"/k"] = Answer{[32]byte{1}, []byte(`{"Shown":7}`)}
		return m.run(func() error { return decide(m) })
	}
	got, err := change(in, keyed(1), func(Tx) (answer, error) { return answer{1, 2}, nil })
	if err != nil || got != (answer{7, 0}) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestEventsHaveTheResidencyOfTheirTenant(t *testing.T) {
	m := newMemory()
	list := []events.Pending{
		{TenantID: activeTenant},
		{TenantID: activeTenant},
		{TenantID: events.Platform},
		{TenantID: suspendedTenant},
		{TenantID: activeTenant},
	}
	if _, err := appendAll(m, list...); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"eu-central-1", "eu-central-1", "", "us-east-1", "eu-central-1"} {
		if got := m.appended[i].Residency; got != want {
			t.Errorf("event %d has the residency %q instead of %q", i, got, want)
		}
	}
	_, err := appendAll(m, events.Pending{TenantID: uuid.New()})
	refusedWith(t, err, "tenant_not_found", "")
}
