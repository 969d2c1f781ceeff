package node

import (
	"log/slog"
	"testing"

	"github.com/meterplex/meterplex/infra/postgres"
)

func TestAnInstanceSaysIfItsServerHasTooFewConnections(t *testing.T) {
	for _, c := range []struct {
		server postgres.Connections
		own    int
		want   slog.Level
	}{
		{postgres.Connections{Limit: 97, Used: 4}, 4, slog.LevelInfo},
		{postgres.Connections{Limit: 97, Used: 97 - 40 + 4}, 4, slog.LevelInfo},
		{postgres.Connections{Limit: 97, Used: 97 - 40 + 5}, 4, slog.LevelWarn},
		{postgres.Connections{Limit: 20, Used: 30}, 4, slog.LevelWarn},
	} {
		if got, text := connectionsSaid(c.server, c.own, 40); got != c.want || text == "" {
			t.Errorf("%+v with %d of its own: %s %s, want %s", c.server, c.own, got, text, c.want)
		}
	}
}
