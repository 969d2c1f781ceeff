package store

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// offboard ends the fixture's tenant by an offboarding in a state.
func (w *letterFixture) offboard(state string) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'Acme', 'small', 'SUSPENDED', now())`, w.tenant)
	w.must(err)
	_, err = w.pool.Exec(w.Context(), `INSERT INTO offboardings (id, tenant_id, saga_id, state, step, reason, actor, requested_at, ended_at)
 VALUES ($1, $2, $1, $3, 'requested', 'r', 'a', now(), CASE WHEN $3::text IN ('CANCELLED', 'ARCHIVED') THEN now() END)`, newID(), w.tenant, state)
	w.must(err)
}

// No period of an archived tenant is closed any more, so a retry would count usage that is never billed: it is refused when it is requested,
// alone or in a bulk, and when a request of before is executed. While the tenant is being offboarded, and after a cancelled offboarding,
// retries are allowed.
func TestP8_DeadLettersOfAnArchivedTenantAreNotRetried(t *testing.T) {
	for state, refused := range map[string]bool{domain.OffboardingRunning: false, domain.OffboardingCancelled: false, domain.OffboardingArchived: true} {
		t.Run(state, func(t *testing.T) {
			w := newLetterFixture(t)
			w.append(events.UsageRejected, events.KeyRejected(1, 0), events.Counts{Rejected: 1}, events.Rejected{RawPosition: 1, EventID: "a", DeadLetterID: w.id})
			w.row(events.StageValidation, 1)
			w.offboard(state)
			d := &commands.DeadLetters{Store: w.store, Now: time.Now, NewID: newID}
			bulk, err := d.Bulk(t.Context(), commands.Request{}, commands.BulkRequest{Action: events.BulkRetry, Filter: events.DeadLetterFilter{Stage: events.StageValidation}},
				func(context.Context) ([]domain.DeadLetterRef, error) {
					return []domain.DeadLetterRef{{ID: w.id, TenantID: w.tenant}}, nil
				})
			w.must(err)
			if (bulk.Done == 0) != refused || refused && (len(bulk.Refused) != 1 || bulk.Refused[0].Code != "tenant_offboarding") {
				t.Errorf("the bulk ends with %+v", bulk)
			}
			_, err = d.RequestRetry(t.Context(), commands.Request{}, w.id, w.tenant, "")
			var refusal *domain.Error
			if errors.As(err, &refusal) != refused || refused && refusal.Code != "tenant_offboarding" || !refused && err != nil {
				t.Errorf("the request ends with %v", err)
			}
			ask, err := json.Marshal(events.Retry{DeadLetterID: w.id})
			w.must(err)
			request := events.Envelope{EventID: newID(), TenantID: w.tenant, Residency: events.ResidencyUnspecified, Payload: ask} // of before
			w.must(w.store.ChangeDeadLetters(t.Context(), w.tenant, func(tx commands.DeadLetterTx) error {
				faults, err := d.ExecuteRetries(tx, []events.Envelope{request})
				return errors.Join(append(faults, err)...)
			}))
			retried := count(t, w.pool, `SELECT count(*) FROM event_log_rows WHERE subject = $1`, events.UsageRetried)
			no := count(t, w.pool, `SELECT count(*) FROM event_log_rows l WHERE subject = $1 AND payload(l) ->> 'code' = 'tenant_offboarding'`, events.RetryRefused)
			if want := map[bool][2]int{true: {0, 1}, false: {1, 0}}[refused]; retried != want[0] || no != want[1] {
				t.Errorf("%d retried and %d refused, want %d", retried, no, want)
			}
			w.must(w.store.ChangeDeadLetters(t.Context(), w.tenant, func(tx commands.DeadLetterTx) error {
				letters, err := tx.DeadLetters([]uuid.UUID{w.id})
				if l := letters[w.id]; err == nil && refused && l.Status != events.StatusFailed {
					t.Errorf("the letter is %+v", l)
				}
				return err
			}))
		})
	}
}
