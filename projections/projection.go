package projections

import (
	"fmt"
	"slices"
)

// Names of the projections.
const (
	ProjectionUsage        = "usage_aggregates"
	ProjectionEntitlements = "entitlement_reads"
	ProjectionDeadLetters  = "dead_letter_events"
	ProjectionSeries       = "usage_series"
	ProjectionRefusals     = "usage_refusals"
)

// Projection defines a read model. The consumers, the rebuilds, the comparison of two
// generations, the purge of dropped ones, GET /projections, the metrics and the CLI are
// derived from its definition.
type Projection struct {
	Name     string   // of the projection in the API and in projection_generations
	Consumer Consumer // folds the projection's source; Consumer.Projection is Name
	Tables   []string // the tables that hold its rows, keyed by generation
	ByPeriod bool     // a generation can be limited to one period
	Diff     Difference
}

// Difference defines how a rebuilt generation is compared with the live one.
type Difference struct {
	Rows    string   // SQL of the rows in the order of their keys; for its parameters see usageSides
	Totals  string   // SQL of the totals
	Closed  string   // SQL of the number of differing keys of closed periods, and of a text that names these; "" if no period is closed
	Largest string   // SQL of the rows with the greatest differences; "" if the rows are no amounts
	Columns []string // the members of DiffRow that its rows have, in the order of the CSV
	// Sums means that the rows are sums of verdicts: a difference has a conservation
	// check and can be broken down by event.
	Sums bool
	// Periods means that keys have a period.
	Periods bool
}

// Newest returns the version of the fold that new generations are bound to.
func (p *Projection) Newest() string { return p.Consumer.Versions[len(p.Consumer.Versions)-1] }

// Version is one version of a projection's fold.
type Version[F any] struct {
	Name string // e.g. "usage_aggregates/v1"; generations are bound to it
	Fold F
}

// Versions are the versions of a projection's fold that this binary has, the newest last.
// A version that a generation may be bound to is never removed; a change of a fold is a
// new version and takes effect by a rebuild.
type Versions[F any] []Version[F]

// Of returns the fold of a version.
func (v Versions[F]) Of(name string) (fold F, err error) {
	i := slices.IndexFunc(v, func(one Version[F]) bool { return one.Name == name })
	if i < 0 {
		return fold, fmt.Errorf("unknown fold version %q: this binary has %q", name, v.Names())
	}
	return v[i].Fold, nil
}

// With returns the versions plus one, as the newest.
func (v Versions[F]) With(name string, fold F) Versions[F] {
	others := slices.DeleteFunc(slices.Clone(v), func(one Version[F]) bool { return one.Name == name })
	return append(others, Version[F]{name, fold})
}

func (v Versions[F]) Names() []string {
	all := make([]string, len(v))
	for i := range v {
		all[i] = v[i].Name
	}
	return all
}

// Find returns the projection of a name. An unknown name is an error, never a default.
func Find(all []Projection, name string) (*Projection, error) {
	i := slices.IndexFunc(all, func(p Projection) bool { return p.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown projection %q", name)
	}
	return &all[i], nil
}
