package node

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// Connections of an instance: workConns for writers, rebuilds and changes; carryingConns
// for the relay and the consumers that process every event; readConns for reads, shared by query.Seats, and as many on a
// read server; lookConns for the queries that validate caches.
const (
	workConns     = 14
	carryingConns = 8
	readConns     = 8
	lookConns     = 2
	listenConns   = 1 // of the notifier
	// pipeWriteConns are for batches on their way through PostgreSQL as the pipe, beside a connection for each of its
	// readers, and for the statements that trim and watch it. A batch waits for a free one.
	pipeWriteConns = 8
)

// pipeConns is the size of the pool of PostgreSQL as the pipe; 0 with Kafka.
func (n *Node) pipeConns() int {
	if n.cfg.Pipe != config.PipePostgres {
		return 0
	}
	readers := 0
	for _, c := range n.consumers() {
		if c.Topic != 0 && n.has(c.Role) {
			readers++
		}
	}
	if n.has("commands") {
		readers++ // of usage.commands
	}
	return readers + pipeWriteConns
}

// database is a server that an instance connects to, by the setting that names it.
type database struct {
	setting string
	pools   []*pgxpool.Pool
	beside  int // connections of the instance outside of the pools
}

// databases lists the servers of an instance whose pools are open.
func (n *Node) databases() []database {
	list := []database{{"DATABASE_URL", []*pgxpool.Pool{n.pool, n.carrying, n.readers, n.looks},
		listenConns + eventlog.AsideConns + n.pipeConns()}}
	if n.replica != nil {
		list = append(list, database{"DATABASE_READ_URL", []*pgxpool.Pool{n.replica}, 0})
	}
	return list
}

// most is the largest number of connections that the instance opens to the server.
func (d *database) most() int {
	most := d.beside
	for _, p := range d.pools {
		most += int(p.Config().MaxConns)
	}
	return most
}

// checkConnections logs how many instances each server has connections for. It warns if there are too few for
// this one, whose pools are open.
func (n *Node) checkConnections(ctx context.Context) {
	for _, d := range n.databases() {
		server, err := postgres.CountConnections(ctx, d.pools[0])
		if err != nil {
			n.logger.Debug("cannot count the connections of the database server", "server", d.setting, "error", err)
			continue
		}
		own, most := 0, d.most()
		for _, p := range d.pools {
			own += int(p.Stat().TotalConns())
		}
		level, text := connectionsSaid(server, own, most)
		n.logger.Log(ctx, level, text, "server", d.setting, "opens_up_to", most, "limit", server.Limit, "used", server.Used,
			"instances_that_fit", server.Limit/most)
	}
}

// connectionsSaid is the message about a server of which this instance has already opened some connections.
func connectionsSaid(server postgres.Connections, own, most int) (slog.Level, string) {
	if server.Free() < most-own {
		return slog.LevelWarn, "the database server has too few connections left for this instance: raise max_connections or the limit " +
			"of the login, or run fewer instances (docs/how-to/sizing.md)"
	}
	return slog.LevelInfo, "the database server has enough connections for this instance"
}
