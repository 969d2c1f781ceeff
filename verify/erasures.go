package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// erasures are the tenants whose personal data is erased. Their events differ from records that were published before, and from the
// manifest of their offboarding, but in no figure.
type erasures map[uuid.UUID]*erasure

type erasure struct {
	id                uuid.UUID
	ended             bool // by the table
	requested, erased bool // steps in the log
}

// isRequested is the condition that the log has the request of an erasure e: the table alone excuses no difference.
const isRequested = `EXISTS (SELECT FROM event_log_rows z WHERE z.partition = %s AND z.tenant_id = e.tenant_id
	AND z.dedupe_key = 'z/' || e.id || '/requested' AND z.subject = 81)`

var erasuresSQL = `SELECT e.id, e.tenant_id, e.state = 'ERASED', ` + fmt.Sprintf(isRequested, "$1") + ` FROM erasures e` + ofPartition

func readErasures(ctx context.Context, tx pgx.Tx, p int16) (erasures, error) {
	all := erasures{}
	var tenant uuid.UUID
	var e erasure
	err := each(ctx, tx, erasuresSQL, []any{p}, []any{&e.id, &tenant, &e.ended, &e.requested}, func() error {
		one := e
		all[tenant] = &one
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the erasures: %w", err)
	}
	return all, nil
}

// of reports whether the personal data of a tenant is erased, or is being erased.
func (all erasures) of(tenant uuid.UUID) bool { return all[tenant] != nil && all[tenant].requested }

// runs reports whether that goes on: the read models follow the log at its end.
func (all erasures) runs(tenant uuid.UUID) bool { return all.of(tenant) && !all[tenant].ended }

// addErasure compares a step of an erasure with the table.
func (x *pass) addErasure(r *row) {
	var s struct {
		ErasureID uuid.UUID
		Step      string
	}
	err := json.Unmarshal(r.body, &s)
	e := x.erased[r.tenant]
	if err != nil || e == nil || e.id != s.ErasureID || string(r.key) != "z/"+e.id.String()+"/"+s.Step {
		x.offboardings.fault("%s is the step %.40q of the erasure %s of %s, which is not in the table", x.at(r.position), s.Step,
			s.ErasureID, r.tenant)
		return
	}
	e.erased = e.erased || s.Step == "erased"
}

func (x *pass) compareErasures() {
	for tenant, e := range x.erased {
		x.offboardings.expect(e.requested && e.ended == e.erased,
			"the erasure %s of %s has ended: %v; its steps in the log: requested %v, erased %v", e.id, tenant, e.ended, e.requested,
			e.erased)
	}
}

var errErasing = errors.New("an erasure of personal data began meanwhile: repeat the check")
