package node

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// Connections of an instance: workConns for writers, rebuilds and changes; carryingConns
// for the relay and the consumers that process every event; readConns for reads, shared by query.Seats;
// lookConns for the queries that validate caches.
const (
	workConns     = 14
	carryingConns = 8
	readConns     = 8
	lookConns     = 2
	listenConns   = 1 // of the notifier
)

// mostConnections is the largest number of connections that an instance opens to its database, without those of
// PostgreSQL as the pipe.
const mostConnections = workConns + carryingConns + readConns + lookConns + listenConns + eventlog.AsideConns

// checkConnections logs how many instances the server has connections for. It warns if there are too few for
// this one, whose pools are open.
func (n *Node) checkConnections(ctx context.Context) {
	server, err := postgres.CountConnections(ctx, n.pool)
	if err != nil {
		n.logger.Debug("cannot count the connections of the database server", "error", err)
		return
	}
	own := 0
	for _, p := range []*pgxpool.Pool{n.pool, n.carrying, n.readers, n.looks} {
		own += int(p.Stat().TotalConns())
	}
	level, text := connectionsSaid(server, own)
	n.logger.Log(ctx, level, text, "opens_up_to", mostConnections, "limit", server.Limit, "used", server.Used, "instances_that_fit", server.Limit/mostConnections)
}

// connectionsSaid is the message about a server of which this instance has already opened some connections.
func connectionsSaid(server postgres.Connections, own int) (slog.Level, string) {
	if server.Free() < mostConnections-own {
		return slog.LevelWarn, "the database server has too few connections left for this instance: raise max_connections or the limit of the login, or run fewer instances (docs/logins.md)"
	}
	return slog.LevelInfo, "the database server has enough connections for this instance"
}
