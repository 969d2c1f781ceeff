package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/localtest"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
)

// related is the causes and effects of an event by brute force, as edges.
func related(log []events.Envelope, root uuid.UUID) (nodes, edges []string) {
	causes := map[uuid.UUID]uuid.UUID{}
	for i := range log {
		causes[log[i].EventID] = log[i].CausationID
	}
	in := map[uuid.UUID]bool{}
	for at, ok := root, true; ok; _, ok = causes[at] {
		in[at], at = true, causes[at]
	}
	for i := range log { // causes precede effects
		for at := log[i].EventID; at != uuid.Nil; at = causes[at] {
			if at == root {
				in[log[i].EventID] = true
			}
		}
	}
	for i := range log {
		e := &log[i]
		if in[e.EventID] {
			nodes = append(nodes, e.EventID.String())
			if in[e.CausationID] {
				edges = append(edges, e.CausationID.String()+" "+e.EventID.String())
			}
		}
	}
	return nodes, edges
}

func graphOf(l audit.Lineage) (nodes, edges []string) {
	for _, n := range l.Nodes {
		nodes = append(nodes, n.EventID.String())
	}
	for _, e := range l.Edges {
		edges = append(edges, e.From.String()+" "+e.To.String())
	}
	slices.Sort(nodes)
	slices.Sort(edges)
	return nodes, edges
}

// P12: the causes and effects of every event are those that a scan of the whole log
// finds, even if the effects are so late that only their keys identify them.
func TestP12_LineageMatchesTheLog(t *testing.T) {
	localtest.FewChecks(t, 40)
	s := NewPipeline(t)
	entitling, _ := s.Runner(s.Entitling.Consumer)
	entitling.Consumer.Handler = PoisonedHandler{Handler: entitling.Consumer.Handler} // a read model beside the way fails, too
	found := map[events.Subject]int{}
	rapid.Check(t, func(rt *rapid.T) {
		d := NewHistory(s)
		d.AddFailures()
		for range rapid.IntRange(3, 12).Draw(rt, "steps") {
			d.AddStep(rt)
		}
		d.Rest()
		s.Drain(entitling, s.Lettering)
		own, _ := d.ReadAll()
		for range 4 {
			e := own[rapid.IntRange(0, len(own)-1).Draw(rt, "of")]
			if i := slices.IndexFunc(own, func(e events.Envelope) bool {
				return found[e.Subject] == 0 && e.CausationID != uuid.Nil
			}); i >= 0 {
				e = own[i] // of a kind not checked yet
			}
			nodes, edges := related(own, e.EventID)
			slices.Sort(nodes)
			slices.Sort(edges)
			for _, span := range []int64{0, 3} {
				viewer := rapid.SampledFrom([]query.Viewer{Operator, TenantViewer(d.Tenant)}).Draw(rt, "viewer")
				l, err := s.Reads.Lineage(context.Background(), viewer, audit.LineageQuery{Ref: audit.EventRef{Position: &e.Position},
					TenantID: &d.Tenant, Span: span})
				s.Must(err)
				if gotNodes, gotEdges := graphOf(l); l.Root != e.EventID || l.Truncated || !slices.Equal(gotNodes, nodes) ||
					!slices.Equal(gotEdges, edges) {
					rt.Fatalf("of %s %s within %d: %v, %v instead of %v, %v", e.Position, e.DedupeKey, span, gotNodes, gotEdges, nodes,
						edges)
				}
			}
			if len(edges) > 0 {
				found[e.Subject]++
			}
		}
	})
	for _, subject := range []events.Subject{events.UsageRecorded, events.UsageValidated, events.UsageRejected, events.UsageRetried,
		events.Reaggregated,
		events.PublishFailed, events.AggregationFailed, events.DeadLetterRetried, events.DeadLetterClosed, events.RetryRefused} {
		if found[subject] == 0 {
			t.Errorf("no lineage of subject %d was seen: the histories are too dull", subject)
		}
	}
}

// A lineage does not claim distant effects that no key leads to.
func TestLineageReportsItsCompleteness(t *testing.T) {
	s := NewPipeline(t)
	s.Payloads.Allow() // they have ids only
	tenant := NewID()
	cause := Plain(tenant, events.TenantChanged, events.Counts{}, map[string]string{"id": tenant.String()})
	first := s.Append(cause)[0]
	for i := range 10 {
		s.Append(Usage(tenant, fmt.Sprint(i), "calls", 1, May))
	}
	effect := Plain(tenant, events.TenantChanged, events.Counts{}, map[string]string{"id": tenant.String()})
	effect.CausationID = cause.EventID
	last := s.Append(effect)[0]
	for span, want := range map[int64]int{5: 1, 11: 2} {
		l, err := s.Reads.Lineage(t.Context(), Operator, audit.LineageQuery{Ref: audit.EventRef{ID: cause.EventID}, Span: span})
		if err != nil || len(l.Nodes) != want || l.CompleteUpTo.Number != first.Number+span {
			t.Errorf("within %d: %+v %v", span, l, err)
		}
	}
	l, err := s.Reads.Lineage(t.Context(), Operator, audit.LineageQuery{Ref: audit.EventRef{ID: effect.EventID}})
	if err != nil || len(l.Nodes) != 2 || l.CompleteUpTo != last || l.Nodes[0].Subject != "meterplex.catalogue.tenant.changed.v1" ||
		l.Nodes[0].Summary != "tenant changed" {
		t.Errorf("%+v %v", l, err)
	}
	_, err = s.Reads.Lineage(t.Context(), TenantViewer(NewID()), audit.LineageQuery{Ref: audit.EventRef{Position: &first}})
	RefusedAs(t, query.ErrNotFound, err)
}

// A correction has the usage that it changes as its cause, and is an effect of it.
func TestLineageLinksCorrectionsToTheirTargets(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	s.Append(Usage(tenant, "e", "calls", 5, May), Usage(tenant, "other", "calls", 5, May),
		Correction(tenant, "c", "calls", "e", 2).Pending, Correction(tenant, "r", "calls", "e", -1).Pending)
	s.Settle()
	name := map[uuid.UUID]string{}
	log := s.Read(0, events.PartitionOf(tenant), 0)
	for _, e := range log {
		if id := codec.UsageIn(e.Payload).EventID; id != "" {
			name[e.EventID] = map[events.Subject]string{events.UsageValidated: "v-"}[e.Subject] + id
		}
	}
	want := map[string]string{"e": "c>v-c e>c e>r e>v-e r>v-r", "c": "c>v-c e>c", "r": "e>r r>v-r", "v-c": "c>v-c e>c", "v-r": "e>r r>v-r",
		"v-e": "e>v-e", "other": "other>v-other"}
	for _, e := range log {
		of := name[e.EventID]
		if want[of] == "" {
			continue
		}
		for _, span := range []int64{0, 1} {
			l, err := s.Reads.Lineage(t.Context(), TenantViewer(tenant), audit.LineageQuery{Ref: audit.EventRef{Position: &e.Position},
				TenantID: &tenant, Span: span})
			s.Must(err)
			var edges []string
			for _, edge := range l.Edges {
				edges = append(edges, name[edge.From]+">"+name[edge.To])
			}
			slices.Sort(edges)
			if got := strings.Join(edges, " "); got != want[of] || l.Truncated {
				t.Errorf("of %s within %d: %s, want %s", of, span, got, want[of])
			}
		}
	}
}

// The verdict on a correction that was retried has the retry as its cause, and the usage that it changes.
func TestLineageLinksARetriedCorrectionToItsTarget(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	usage := Usage(tenant, "e", "calls", 5, May)
	at := s.Append(usage, Correction(tenant, "c", "calls", "e", 2).Pending)
	retry := Plain(tenant, events.UsageRetried, events.Counts{Accepted: 1}, events.Retried{RawPosition: at[1].Number, DeadLetterID: NewID(),
		Attempt: 1, Usage: json.RawMessage(`{}`)})
	verdict := Plain(tenant, events.UsageValidated, events.Counts{Validated: 1}, events.Validated{RawPosition: at[1].Number, EventID: "c",
		Feature: "calls", Amount: -3, Timestamp: May,
		FeatureType: domain.FeatureMetered, PeriodKey: "2026-05", CorrectedUsage: &events.CorrectedUsage{Kind: events.TypeCorrection,
			TargetPosition: at[0].Number, TargetEventID: "e", Before: 5, After: 2}})
	verdict.DedupeKey, verdict.CausationID = events.KeyValidated(at[1].Number), retry.EventID
	position := s.Append(retry, verdict)[1]
	l, err := s.Reads.Lineage(t.Context(), TenantViewer(tenant), audit.LineageQuery{Ref: audit.EventRef{Position: &position},
		TenantID: &tenant})
	s.Must(err)
	_, edges := graphOf(l)
	want := []string{usage.EventID.String() + " " + verdict.EventID.String(), retry.EventID.String() + " " + verdict.EventID.String()}
	slices.Sort(want)
	if !slices.Equal(edges, want) {
		t.Errorf("%v, want %v", edges, want)
	}
}
