package validate

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// A history that was read under an earlier head is true under a later one if the changes between are of other tenants, and all of them are
// known. Otherwise it is read again: a verdict must not miss the close of a period.
func TestP8_AHistoryIsTrueUnderALaterHeadIfOtherTenantsChanged(t *testing.T) {
	tenant, other := uuid.MustParse("0198c3a0-0000-7000-8000-000000000001"), uuid.MustParse("0198c3a0-0000-7000-8000-000000000002")
	for events.PartitionOf(other) != events.PartitionOf(tenant) {
		other[15]++
	}
	p := events.PartitionOf(tenant)
	at := func(epoch int32, catalogue, billing int64) []events.InlineStretch {
		return []events.InlineStretch{{Stretch: events.Stretch{Partition: p}, Epoch: epoch, Catalogue: catalogue, Billing: billing}}
	}
	marks := func(steps ...projections.CatalogueStep) *projections.CatalogueMarks {
		m := (*projections.CatalogueMarks)(nil).With([]projections.CatalogueStep{{Partition: p, Epoch: 1, Mark: 10}})
		for _, s := range steps {
			s.Partition = p
			m = m.With([]projections.CatalogueStep{s})
		}
		return m
	}
	errRead := errors.New("read")
	for _, c := range []struct {
		what  string
		marks *projections.CatalogueMarks
		head  []events.InlineStretch
		want  error
	}{
		{"the same head", nil, at(1, 10, 8), nil},
		{"a later head, without marks", nil, at(1, 10, 20), errRead},
		{"a close of another tenant", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other}}), at(1, 10, 20), nil},
		{"a change of the catalogue of another tenant", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other}}), at(1, 20, 8), nil},
		{"its own close", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other, tenant}}), at(1, 10, 20), errRead},
		{"a close that the marks do not know", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other}}), at(1, 10, 21), errRead},
		{"changes that are not known", marks(projections.CatalogueStep{Epoch: 1, Mark: 20}), at(1, 10, 20), errRead},
		{"another epoch of the head", marks(projections.CatalogueStep{Epoch: 1, Mark: 20, Changed: []uuid.UUID{other}}), at(2, 10, 20), errRead},
		{"another epoch of the marks", marks(projections.CatalogueStep{Epoch: 2, Mark: 20, Changed: []uuid.UUID{other}}), at(1, 10, 20), errRead},
	} {
		h := &Histories{Marks: func() *projections.CatalogueMarks { return c.marks }}
		h.recent.store(map[uuid.UUID]history{tenant: {TenantHistory: domain.TenantHistory{}}}, at(1, 10, 8))
		query := func(context.Context, string, ...any) (pgx.Rows, error) { return nil, errRead }
		if _, err := h.Of(t.Context(), query, []uuid.UUID{tenant}, c.head); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}
