package main

import (
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/tier"
)

// PostgreSQL's versions have their statistics in different views.
func TestWriteStatisticsOfEachPostgresAreRead(t *testing.T) {
	tier.AtSize(t)
	majors := local.Majors()
	for _, major := range []int{majors[0], majors[len(majors)-1]} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			s := &servers{database: localtest.PostgresOf(t, major).Postgres}
			if err := s.asAdmin(t.Context(), "postgres", `CREATE TABLE written (a int)`, `CHECKPOINT`,
				`SELECT pg_stat_force_next_flush()`); err != nil {
				t.Fatal(err)
			}
			w, err := s.writes(t.Context())
			if err != nil || w.WALBytes == 0 || w.Writes == 0 || w.Transactions == 0 || w.Syncs == 0 {
				t.Errorf("%+v, %v", w, err)
			}
		})
	}
}
