package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	isArchived    = "ARCHIVED"
	stepExported  = "exported"
	stepArchived  = "archived"
	stepCancelled = "cancelled"
	stepReverted  = "reverted"
)

// offboardings are the ends of tenants. They are read before the pass, so that it compares the tenants' events with them.
type offboardings struct {
	of       map[uuid.UUID]*offboarding
	ofTenant map[uuid.UUID][]*offboarding
}

// offboarding is a row of the table, with its events.
type offboarding struct {
	id, tenant     uuid.UUID
	state, step    string
	suspended      bool
	drainedTo      int64
	manifest, list string // the bytes, and the SHA-256 of its last event
	steps          []string
	kept           manifest
	log            hash.Hash // of the tenant's events that the manifest lists
	events, bytes  int64
	first, last    int64
}

// manifest lists the kept data of a tenant.
type manifest struct {
	TenantID  uuid.UUID
	Snapshots []struct {
		PeriodKey, CutPosition, SHA256 string
		Snapshot                       int
	}
	Log struct {
		Events, Bytes                       int64
		FirstPosition, LastPosition, SHA256 string
	}
}

// offboardingStep has the members of the event of a step.
type offboardingStep struct {
	OffboardingID         uuid.UUID
	Step, Outcome, Detail string
}

const offboardingsSQL = `SELECT id, tenant_id, state, step, suspended_at IS NOT NULL, drained_to, coalesce(manifest, '')
 FROM offboardings` + ofPartition

func readOffboardings(ctx context.Context, tx pgx.Tx, p int16) (offboardings, error) {
	all := newOffboardings()
	var o offboarding
	err := each(ctx, tx, offboardingsSQL, []any{p}, []any{&o.id, &o.tenant, &o.state, &o.step, &o.suspended, &o.drainedTo, &o.manifest},
		func() error {
			all.note(o)
			return nil
		})
	if err != nil {
		return all, fmt.Errorf("read the offboardings: %w", err)
	}
	return all, nil
}

func newOffboardings() offboardings {
	return offboardings{of: map[uuid.UUID]*offboarding{}, ofTenant: map[uuid.UUID][]*offboarding{}}
}

func (all *offboardings) note(o offboarding) {
	o.log = sha256.New()
	_ = json.Unmarshal([]byte(o.manifest), &o.kept) // bytes of an unknown form list no snapshot
	all.of[o.id] = &o
	all.ofTenant[o.tenant] = append(all.ofTenant[o.tenant], &o)
}

// addOffboarding follows the steps of offboardings, and the events of tenants that are offboarded.
func (x *pass) addOffboarding(r *row, _ *content, _ error) {
	for _, o := range x.ending.ofTenant[r.tenant] {
		if usage := r.subject == recorded || r.subject == admitted || r.subject == corrected ||
			r.subject == retracted; usage && o.drainedTo > 0 && r.position > o.drainedTo {
			x.offboardings.expect(slices.Contains(o.steps, stepReverted), "%s is usage of the tenant %s, which accepts no key since %s",
				x.at(r.position), o.tenant, x.at(o.drainedTo))
		}
		o.addKept(x, r)
	}
	if r.subject == erasureStepped {
		x.addErasure(r)
	}
	if r.subject != offboardingStepped {
		return
	}
	var s offboardingStep
	err := json.Unmarshal(r.body, &s)
	o := x.ending.of[s.OffboardingID]
	if err != nil || o == nil || o.tenant != r.tenant {
		x.offboardings.fault("%s is the step %.40q of the offboarding %s of %s, which is not in the table", x.at(r.position), s.Step,
			s.OffboardingID, r.tenant)
		return
	}
	o.steps = append(o.steps, s.Step)
	key := "o/" + o.id.String() + "/" + s.Step
	x.offboardings.expect(string(r.key) == key || s.Step == stepExported && strings.HasPrefix(string(r.key), key+"/"),
		"%s has the key %.80q, the step is %.40q", x.at(r.position), r.key, s.Step)
	if s.Step == stepExported {
		o.list, _ = strings.CutPrefix(s.Detail, "sha256 ")
	}
}

// addKept adds an event to those that the manifest lists: position, id, subject and payload in a line.
func (o *offboarding) addKept(x *pass, r *row) {
	if o.log == nil || o.manifest == "" || o.kept.Log.LastPosition == "" || o.last > 0 && x.at(o.last).String() == o.kept.Log.LastPosition {
		return
	}
	payload, err := r.payload()
	if err != nil {
		x.offboardings.incomplete(fmt.Errorf("%s: %w", x.at(r.position), err))
	}
	n, _ := fmt.Fprintf(o.log, "%s %s %d %s\n", x.at(r.position), r.id, r.subject, payload) // a hash never fails
	o.events, o.bytes, o.last = o.events+1, o.bytes+int64(n), r.position
	if o.first == 0 {
		o.first = r.position
	}
}

const endedTenantsSQL = `SELECT t.id, t.status, (SELECT count(*) FROM api_keys k WHERE k.tenant_id = t.id AND (k.revoked_at IS NULL
	OR k.revoked_at > now() + interval '1 minute')),
 (SELECT count(*) FROM subscriptions s WHERE s.tenant_id = t.id AND s.status IN ('ACTIVE', 'TRIALING')) FROM tenants t WHERE t.id = ANY ($1)
 OR t.status = 'ARCHIVED'`

// compareOffboardings compares the offboardings with their steps, their manifests and the tenants.
func (x *pass) compareOffboardings(ctx context.Context, tx pgx.Tx) error {
	x.compareErasures()
	tenants := []uuid.UUID{}
	for _, o := range x.ending.of {
		x.offboardings.n++
		x.checkSteps(o)
		x.checkManifest(o)
		tenants = append(tenants, o.tenant)
	}
	var tenant uuid.UUID
	var status string
	var keys, subscriptions int64
	err := each(ctx, tx, endedTenantsSQL, []any{tenants}, []any{&tenant, &status, &keys, &subscriptions}, func() error {
		if partitionOf(tenant) == x.p {
			x.checkEnded(tenant, status, keys, subscriptions)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the tenants that are offboarded: %w", err)
	}
	return nil
}

// checkEnded compares a tenant with its offboardings.
func (x *pass) checkEnded(tenant uuid.UUID, status string, keys, subscriptions int64) {
	ended, suspended := false, false
	for _, o := range x.ending.ofTenant[tenant] {
		ended = ended || o.state == isArchived
		suspended = suspended || o.suspended && (o.state == "RUNNING" || o.state == "CANCELLING")
	}
	x.offboardings.expect(ended == (status == isArchived), "the tenant %s is %s, and has an offboarding that archived it: %v", tenant,
		status, ended)
	x.offboardings.expect(!suspended || status == "SUSPENDED", "the tenant %s is %s while its offboarding suspends it", tenant, status)
	x.offboardings.expect(!ended || keys == 0, "the archived tenant %s has %d keys that are not revoked", tenant, keys)
	x.offboardings.expect(!ended || subscriptions == 0, "the archived tenant %s has %d subscriptions in force", tenant, subscriptions)
}

// checkSteps compares an offboarding with the order of its steps.
func (x *pass) checkSteps(o *offboarding) {
	x.offboardings.expect(inOrder(o.steps), "the offboarding %s has the steps %q", o.id, o.steps)
	state, last := "RUNNING", ""
	for _, step := range o.steps {
		switch step {
		case stepCancelled:
			state = "CANCELLING"
			continue // the row names the step before it
		case stepReverted:
			state = "CANCELLED"
		case stepArchived:
			state = isArchived
		}
		last = step
	}
	x.offboardings.expect(o.state == state && o.step == last, "the offboarding %s is %s after %q, its steps in the log are %q", o.id,
		o.state, o.step, o.steps)
}

// inOrder reports whether the steps follow one another, each once. A manifest is exported again if a snapshot is new.
func inOrder(steps []string) bool {
	order := []string{"requested", "suspended", "drained", "closed", "pushed", stepExported, stepArchived}
	next := 0
	for n, step := range steps {
		switch {
		case step == stepCancelled:
			rest := steps[n+1:]
			return next > 0 && next < len(order) && (len(rest) == 0 || len(rest) == 1 && rest[0] == stepReverted)
		case next < len(order) && step == order[next]:
			next++
		case step != stepExported || steps[max(n-1, 0)] != stepExported:
			return false
		}
	}
	return next > 0
}

// checkManifest compares a manifest with its hash in the log, the snapshots and the tenant's events.
func (x *pass) checkManifest(o *offboarding) {
	if o.manifest == "" {
		x.offboardings.expect(o.list == "" && o.state != isArchived, "the offboarding %s is %s, and has no manifest", o.id, o.state)
		return
	}
	sum := sha256.Sum256([]byte(o.manifest))
	x.offboardings.expect(hex.EncodeToString(sum[:]) == o.list, "the manifest of the offboarding %s has the SHA-256 %x, its event %.64q",
		o.id, sum, o.list)
	listed := map[*frozenSnapshot]bool{}
	for _, m := range o.kept.Snapshots {
		var n *frozenSnapshot
		if p := x.periods.of[periodKey{o.tenant, m.PeriodKey}]; p != nil {
			n = p.numbered(m.Snapshot)
		}
		if n == nil || listed[n] || n.end.FiguresHash != m.SHA256 || m.CutPosition != x.at(n.cut).String() {
			x.offboardings.fault("the manifest of the offboarding %s lists snapshot %d of %.40s with the hash %.64q, cut at %.20q; the "+
				"log has no such close", o.id, m.Snapshot, m.PeriodKey, m.SHA256, m.CutPosition)
			continue
		}
		listed[n] = true
	}
	if o.state == isArchived {
		for k, p := range x.periods.of {
			for _, n := range p.snapshots {
				x.offboardings.expect(k.tenant != o.tenant || n.closed == 0 || listed[n],
					"the manifest of the offboarding %s does not list snapshot %d of %s", o.id, n.number, k)
			}
		}
	}
	is := o.kept.Log
	erased := x.erased.of(o.tenant) // the manifest lists the log of before
	x.offboardings.expect(o.kept.TenantID == o.tenant && is.Events == o.events && is.FirstPosition == x.at(o.first).String() &&
		(erased || is.Bytes == o.bytes && is.SHA256 == hex.EncodeToString(o.log.Sum(nil))),
		"the manifest of the offboarding %s lists %d events from %s to %s, %d bytes with the hash %.64q; the log has %d from %s, %d "+
			"bytes with %x", o.id, is.Events, is.FirstPosition, is.LastPosition, is.Bytes, is.SHA256, o.events, x.at(o.first), o.bytes,
		o.log.Sum(nil))
}
