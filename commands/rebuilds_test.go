package commands

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// rebuildTx fakes the port of rebuilds.
type rebuildTx struct {
	*memory
	rebuilds    map[uuid.UUID]domain.Rebuild
	folds       []string
	generations []domain.Generation
	moved       bool
	covered     bool
	steps       []string // the loads and saves of a flip, in order
}

func (tx *rebuildTx) did(step string) { tx.steps = append(tx.steps, step) }

func (tx *rebuildTx) ChangeRebuilds(_ context.Context, projection string, decide func(RebuildTx) error) error {
	tx.did("change " + projection)
	return tx.run(events.Platform, func() error { return decide(tx) })
}

func (tx *rebuildTx) Rebuilds(projection string) (open []domain.Rebuild, err error) {
	for _, r := range tx.rebuilds {
		if r.Projection == projection && r.Open() {
			open = append(open, r)
		}
	}
	return open, nil
}

// rebuildsOf is the store, whose Rebuild has another signature than the transaction's.
type rebuildsOf struct{ *rebuildTx }

func (s rebuildsOf) Rebuild(_ context.Context, id uuid.UUID) (*domain.Rebuild, error) {
	return s.rebuildTx.Rebuild(id)
}

func (tx *rebuildTx) Rebuild(id uuid.UUID) (*domain.Rebuild, error) {
	return found(tx.rebuilds, id)
}

func (tx *rebuildTx) StartSaga(s domain.SagaStart) (*domain.Saga, bool, error) {
	tx.did("start " + s.Kind)
	return &domain.Saga{ID: s.ID}, true, nil
}

func (tx *rebuildTx) LiveFolds(string, uuid.UUID, string) ([]string, error) { return tx.folds, nil }

func (tx *rebuildTx) StartRebuild(r domain.Rebuild) (int, error) {
	r.Generation = 4
	tx.rebuilds[r.ID] = r
	return 4, nil
}

func (tx *rebuildTx) SaveRebuild(r domain.Rebuild) error {
	tx.rebuilds[r.ID] = r
	return nil
}

func (tx *rebuildTx) LockGenerations(*domain.Rebuild) error {
	tx.did("lock")
	return nil
}

func (tx *rebuildTx) Generations(*domain.Rebuild) ([]domain.Generation, error) {
	tx.did("generations")
	return tx.generations, nil
}

func (tx *rebuildTx) MovesEvents(*domain.Rebuild) (bool, error) { return tx.moved, nil }
func (tx *rebuildTx) Covered(*domain.Rebuild) (bool, error)     { return tx.covered, nil }

func (tx *rebuildTx) Changed(_ *domain.Rebuild, shown []string) (*domain.Current, error) {
	tx.did("compare")
	if slices.Contains(shown, "shown") {
		return nil, nil
	}
	keys, delta := int64(3), json.Number("-12")
	return &domain.Current{Keys: &keys, Delta: &delta, ETag: "now"}, nil
}

func (tx *rebuildTx) Flip(*domain.Rebuild) (int, error) {
	tx.did("flip")
	return 8, nil
}

func (tx *rebuildTx) Unflip(*domain.Rebuild) (int, error) {
	tx.did("unflip")
	return 9, nil
}

// rebuildIn is a rebuild of usage with the generation 3.
func rebuildIn(state string, spoil ...func(*domain.Rebuild)) domain.Rebuild {
	r := domain.Rebuild{ID: uuid.UUID{1}, Projection: "usage", Consumer: "aggregator", Generation: 3, FoldVersion: "v2", Purpose: events.PurposeRebuild, State: state}
	for _, f := range spoil {
		f(&r)
	}
	return r
}

func newRebuilds(list ...domain.Rebuild) (*Rebuilds, *rebuildTx) {
	tx := &rebuildTx{memory: newMemory(), rebuilds: map[uuid.UUID]domain.Rebuild{}, folds: []string{"v1"}, generations: []domain.Generation{
		{Number: 2, Visible: true, Fed: events.Partitions}, {Number: 3, Fed: events.Partitions},
	}}
	for _, r := range list {
		tx.rebuilds[r.ID] = r
	}
	transacted(tx.memory, &tx.rebuilds)
	return &Rebuilds{Store: rebuildsOf{tx}, Now: clock, NewID: tx.newID, Projections: []Projection{
		{Name: "usage", Consumer: "aggregator", Newest: "v2", ByPeriod: true}, {Name: "audit", Consumer: "auditor", Newest: "v1"},
	}}, tx
}

func TestBadRebuildsAreRefused(t *testing.T) {
	good := StartRebuild{Projection: "usage", Reason: "why"}
	for name, c := range map[string]struct {
		spoil         func(*StartRebuild)
		code, pointer string
	}{
		"projection":       {func(in *StartRebuild) { in.Projection = "none" }, "projection_not_found", ""},
		"no reason":        {func(in *StartRebuild) { in.Reason = " " }, "reason_required", "/reason"},
		"long reason":      {func(in *StartRebuild) { in.Reason = strings.Repeat("r", 501) }, "reason_invalid", "/reason"},
		"no periods":       {func(in *StartRebuild) { in.Projection, in.PeriodKey = "audit", "2026-05" }, "scope_invalid", "/periodKey"},
		"period":           {func(in *StartRebuild) { in.PeriodKey = "2026-13" }, "period_key_invalid", "/periodKey"},
		"negative workers": {func(in *StartRebuild) { in.Workers = -1 }, "workers_invalid", "/workers"},
		"too many workers": {func(in *StartRebuild) { in.Workers = 33 }, "workers_invalid", "/workers"},
		"tenant":           {func(in *StartRebuild) { in.TenantID = uuid.New() }, "tenant_not_found", "/tenantId"},
		"overlap":          {func(in *StartRebuild) { in.TenantID = suspendedTenant; in.PeriodKey = "2026" }, "rebuild_in_progress", ""},
		"mixed folds":      {func(in *StartRebuild) { in.Verify = true }, "scope_mixed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			rebuilds, tx := newRebuilds(rebuildIn(domain.RebuildReady))
			tx.folds = []string{"v1", "v2"}
			in := good
			c.spoil(&in)
			_, err := rebuilds.Start(t.Context(), Request{By: operator}, in)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

func TestARebuildIsStartedOnceForEachKey(t *testing.T) {
	for name, c := range map[string]struct {
		in      StartRebuild
		purpose string
		fold    string
	}{
		"of all":               {StartRebuild{Projection: "usage"}, events.PurposeRebuild, "v2"},
		"of a tenant's period": {StartRebuild{Projection: "usage", TenantID: activeTenant, PeriodKey: "2026-05", Workers: 32}, events.PurposeRebuild, "v2"},
		"a verify":             {StartRebuild{Projection: "usage", Verify: true, Repair: true}, events.PurposeVerify, "v1"},
		"no verify to repair":  {StartRebuild{Projection: "audit", Repair: true}, events.PurposeRebuild, "v1"},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Reason = "why"
			// The rebuild of another scope or purpose does not stand in the way.
			other := func(r *domain.Rebuild) { r.TenantID = suspendedTenant }
			if c.in.TenantID == uuid.Nil {
				other = func(r *domain.Rebuild) { r.Purpose, r.State = c.purpose, domain.RebuildPromoted }
			}
			rebuilds, tx := newRebuilds(rebuildIn(domain.RebuildFolding, other))
			answer, event := tx.once(t, caused{subject: events.RebuildRequested, tenant: events.Platform},
				func(req Request) (any, error) { return rebuilds.Start(t.Context(), req, c.in) })
			r := answer.(domain.Rebuild)
			workers := r.Workers == c.in.Workers || c.in.Workers == 0 && r.Workers >= 1 && r.Workers <= maxWorkers
			if r.ID != event.EventID || r.Generation != 4 || r.Purpose != c.purpose || r.FoldVersion != c.fold || r.Repair != (c.in.Verify && c.in.Repair) ||
				r.State != domain.RebuildFolding || !workers || r.TenantID != c.in.TenantID || r.PeriodKey != c.in.PeriodKey || tx.rebuilds[r.ID] != r {
				t.Errorf("%+v, saved %+v", r, tx.rebuilds[r.ID])
			}
			got := payload[events.Rebuild](t, &event)
			if (got.TenantID == nil) != (c.in.TenantID == uuid.Nil) || got.TenantID != nil && *got.TenantID != activeTenant || got.Generation != 4 ||
				got.FoldVersion != c.fold || got.Purpose != c.purpose || got.PeriodKey != c.in.PeriodKey || got.Reason != "why" {
				t.Errorf("recorded %+v", got)
			}
		})
	}
}

func TestDecisionsOnRebuildsThatAreRefused(t *testing.T) {
	broken := domain.Generation{Number: 3, Broken: "an event", Fed: events.Partitions}
	behind := domain.Generation{Number: 2, Visible: true, Fed: events.Partitions - 1}
	type decide func(*Rebuilds, context.Context, Request, uuid.UUID, string) (domain.Rebuild, error)
	promote, rollBack, abandon := decide((*Rebuilds).Promote), decide((*Rebuilds).RollBack), decide((*Rebuilds).Abandon)
	for name, c := range map[string]struct {
		decide decide
		state  string
		id     uuid.UUID
		reason string
		spoil  func(*rebuildTx)
		code   string
	}{
		"no reason":         {promote, domain.RebuildReady, uuid.UUID{1}, "", nil, "reason_required"},
		"unknown":           {promote, domain.RebuildReady, uuid.UUID{9}, "why", nil, "rebuild_not_found"},
		"not ready":         {promote, domain.RebuildFolding, uuid.UUID{1}, "why", nil, "rebuild_not_ready"},
		"broken":            {promote, domain.RebuildReady, uuid.UUID{1}, "why", func(tx *rebuildTx) { tx.generations[1] = broken }, "generation_broken"},
		"events moved":      {promote, domain.RebuildReady, uuid.UUID{1}, "why", func(tx *rebuildTx) { tx.moved = true }, "period_not_conserved"},
		"not promoted":      {rollBack, domain.RebuildReady, uuid.UUID{1}, "why", nil, "rebuild_not_promoted"},
		"a repair":          {rollBack, domain.RebuildPromoted, uuid.UUID{1}, "why", nil, "rebuild_is_repair"},
		"covered":           {rollBack, domain.RebuildPromoted, uuid.UUID{1}, "why", func(tx *rebuildTx) { tx.covered = true }, "rebuild_superseded"},
		"the old is behind": {rollBack, domain.RebuildPromoted, uuid.UUID{1}, "why", func(tx *rebuildTx) { tx.generations[0] = behind }, "rollback_expired"},
		"promoted":          {abandon, domain.RebuildPromoted, uuid.UUID{1}, "why", nil, "rebuild_promoted"},
	} {
		t.Run(name, func(t *testing.T) {
			r := rebuildIn(c.state, func(r *domain.Rebuild) { r.PeriodKey, r.Repair = "2026-05", name == "a repair" })
			rebuilds, tx := newRebuilds(r)
			if c.spoil != nil {
				c.spoil(tx)
			}
			_, err := c.decide(rebuilds, t.Context(), keyed(1), c.id, c.reason)
			refusedWith(t, err, c.code, map[bool]string{true: "/reason"}[c.code == "reason_required"])
			if tx.succeeded(t, nil, 0); tx.rebuilds[r.ID] != r || slices.Contains(tx.steps, "flip") {
				t.Errorf("%+v after %v", tx.rebuilds[r.ID], tx.steps)
			}
		})
	}
}

// The generations are locked before they are read, and a rollback reads what it makes
// visible.
func TestARebuildIsDecidedOnceForEachKey(t *testing.T) {
	for name, c := range map[string]struct {
		from, to string
		decide   func(*Rebuilds, context.Context, Request, uuid.UUID, string) (domain.Rebuild, error)
		subject  events.Subject
		flip     int
		steps    string
	}{
		"promote":   {domain.RebuildReady, domain.RebuildPromoted, (*Rebuilds).Promote, events.RebuildPromoted, 8, "change usage, lock, generations, flip, start period_reconcile"},
		"again":     {domain.RebuildRolledBack, domain.RebuildPromoted, (*Rebuilds).Promote, events.RebuildPromoted, 8, "change usage, lock, generations, flip, start period_reconcile"},
		"roll back": {domain.RebuildPromoted, domain.RebuildRolledBack, (*Rebuilds).RollBack, events.RebuildRolledBack, 9, "change usage, lock, unflip, generations, start period_reconcile"},
		"abandon":   {domain.RebuildFolding, domain.RebuildAbandoned, (*Rebuilds).Abandon, events.RebuildAbandoned, 0, "change usage"},
	} {
		t.Run(name, func(t *testing.T) {
			rebuilds, tx := newRebuilds(rebuildIn(c.from))
			_, err := c.decide(rebuilds, t.Context(), Request{By: operator}, uuid.UUID{1}, "why")
			if tx.succeeded(t, err, 1); strings.Join(tx.steps, ", ") != c.steps {
				t.Errorf("decided by %v", tx.steps)
			}
			rebuilds, tx = newRebuilds(rebuildIn(c.from))
			tx.moved = true // of no period
			answer, event := tx.once(t, caused{subject: c.subject, tenant: events.Platform}, func(req Request) (any, error) {
				r, err := c.decide(rebuilds, t.Context(), req, uuid.UUID{1}, "why")
				return stateOf(r), err
			})
			if want := (rebuildState{c.to, c.flip, stored.String()}); answer != want || stateOf(tx.rebuilds[uuid.UUID{1}]) != want {
				t.Errorf("%+v, saved %+v", answer, tx.rebuilds[uuid.UUID{1}])
			}
			if got := payload[events.RebuildStep](t, &event); got != (events.RebuildStep{RebuildID: uuid.UUID{1}, Projection: "usage", Generation: 3, Flip: c.flip, Reason: "why"}) {
				t.Errorf("recorded %+v", got)
			}
		})
	}
}

// rebuildState holds the fields that a decision changes.
type rebuildState struct {
	state string
	flip  int
	ended string
}

func stateOf(r domain.Rebuild) rebuildState {
	ended := ""
	if r.EndedAt != nil {
		ended = r.EndedAt.String()
	}
	return rebuildState{r.State, r.Flip, ended}
}

func TestAVerifyEnds(t *testing.T) {
	for name, c := range map[string]struct {
		differs int64
		repair  bool
		state   string
		subject events.Subject
	}{
		"equal":              {0, true, domain.RebuildAbandoned, events.RebuildAbandoned},
		"different":          {2, false, domain.RebuildAbandoned, events.RebuildAbandoned},
		"different, repairs": {2, true, domain.RebuildPromoted, events.RebuildPromoted},
	} {
		t.Run(name, func(t *testing.T) {
			rebuilds, tx := newRebuilds(rebuildIn(domain.RebuildReady, func(r *domain.Rebuild) {
				r.Purpose, r.Repair, r.FoldVersion = events.PurposeVerify, c.repair, "v1"
			}))
			end := tx.succeeded(t, rebuilds.FinishVerify(t.Context(), uuid.UUID{1}, c.differs), 2)
			r := tx.rebuilds[uuid.UUID{1}]
			if r.State != c.state || r.Differs == nil || *r.Differs != c.differs {
				t.Errorf("%+v", r)
			}
			for i, subject := range []events.Subject{events.ProjectionVerified, c.subject} {
				p := &tx.appended[i]
				if p.Subject != subject || p.TenantID != events.Platform || p.Actor != (events.Actor{Type: "service", ID: "meterplex-rebuilder"}) || p.DedupeKey != events.KeyEvent(p.EventID) {
					t.Errorf("appended %+v", p)
				}
			}
			got := payload[events.Verified](t, &tx.appended[0])
			if got != (events.Verified{RebuildID: r.ID, Projection: "usage", Generation: 3, Differs: c.differs, Repaired: c.subject == events.RebuildPromoted}) {
				t.Errorf("recorded %+v", got)
			}
			if got := payload[events.RebuildStep](t, &end); got.Flip != r.Flip || got.Reason == "" {
				t.Errorf("recorded %+v", got)
			}
		})
	}
}

func TestAVerifyThatCannotEnd(t *testing.T) {
	for name, c := range map[string]struct {
		state string
		folds []string
		code  string
	}{
		"finished by another": {domain.RebuildAbandoned, []string{"v2"}, "rebuild_not_ready"},
		"another fold":        {domain.RebuildReady, []string{"v3"}, "scope_changed"},
		"several folds":       {domain.RebuildReady, []string{"v2", "v3"}, "scope_mixed"},
	} {
		t.Run(name, func(t *testing.T) {
			rebuilds, tx := newRebuilds(rebuildIn(c.state))
			tx.folds = c.folds
			refusedWith(t, rebuilds.FinishVerify(t.Context(), uuid.UUID{1}, 1), c.code, "")
			if tx.succeeded(t, nil, 0); tx.rebuilds[uuid.UUID{1}] != rebuildIn(c.state) {
				t.Errorf("%+v", tx.rebuilds)
			}
		})
	}
}

// The difference is compared under the locks that keep it, before anything changes.
func TestAPromotionOfAnotherDifferenceIsRefused(t *testing.T) {
	c, tx := newRebuilds(rebuildIn(domain.RebuildReady))
	_, err := c.PromoteShown(t.Context(), keyed(1), uuid.UUID{1}, "why", []string{"earlier"})
	refusedWith(t, err, "state_changed", "")
	if refusal := (*domain.Error)(nil); !errors.As(err, &refusal) || refusal.Current == nil || refusal.Current.ETag != "now" || !strings.Contains(refusal.Message, "3 keys differ with a sum of deltas of -12") {
		t.Errorf("refused with %+v", refusal)
	}
	tx.succeeded(t, nil, 0)
	if got := tx.rebuilds[uuid.UUID{1}].State; got != domain.RebuildReady || slices.Contains(tx.steps, "flip") {
		t.Errorf("the rebuild is %s after %v", got, tx.steps)
	}
	tx.steps = nil
	r, err := c.PromoteShown(t.Context(), keyed(1), uuid.UUID{1}, "why", []string{"earlier", "shown"})
	if tx.succeeded(t, err, 1); r.State != domain.RebuildPromoted || slices.Index(tx.steps, "compare") < slices.Index(tx.steps, "lock") || slices.Index(tx.steps, "compare") > slices.Index(tx.steps, "flip") {
		t.Errorf("%s after %v", r.State, tx.steps)
	}
}
