package node

import (
	"context"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// RepairedTable is the repair of a table of the catalogue.
type RepairedTable = store.RepairedTable

// RepairCatalogue sets the rows of the catalogue in a database to the values of the log. It needs no running instance.
func RepairCatalogue(ctx context.Context, url string) ([]RepairedTable, error) {
	pool, err := postgres.Open(ctx, postgres.Config{URL: url, MaxConns: 1, ApplicationName: "meterplex-repair"})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	return store.RepairCatalogue(ctx, pool)
}
