package commands

import (
	"context"

	"github.com/google/uuid"
)

// unfaked is a transaction of the catalogue without methods: a change that uses a method
// of another noun panics.
type unfaked struct{ CatalogueTx }

// fakeCatalogue is a store whose transactions are tx.
type fakeCatalogue struct {
	*memory
	tx CatalogueTx
}

func (s *fakeCatalogue) ChangeCatalogue(_ context.Context, tenant uuid.UUID, decide func(CatalogueTx) error) error {
	return s.run(tenant, func() error { return decide(s.tx) })
}

func catalogueOf(m *memory, tx CatalogueTx) *Catalogue {
	return &Catalogue{Store: &fakeCatalogue{m, tx}, Now: clock, NewID: m.newID, NewSecret: func() [32]byte { return [32]byte{1, 2, 3} }, Region: "eu-west-1"}
}
