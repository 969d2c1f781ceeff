package node

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/projections/query"
)

// sizes are the largest numbers of connections that an instance opens to its database, by their use.
type sizes struct {
	work int // writers, rebuilds and changes
	hot  int // the relay and the consumers that process every event
	read int // reads, shared by query.Seats
	look int // the queries that validate caches
	pipe int // PostgreSQL as the pipe: one for each of its readers, and others for batches, which wait for a free one
}

const (
	// readConns are for reads, and as many on a read server.
	readConns = 8
	// besideConns are the notifier's and the log's, outside the pools.
	besideConns = 1 + eventlog.AsideConns
)

// bounds returns the connections that the roles of this instance need to work, and those that they can use.
func (n *Node) bounds() (least, most sizes) {
	least, most = sizes{work: 4, hot: 1, read: 1, look: 2}, sizes{work: 8, hot: 1, read: 1, look: 2}
	if n.has("api") {
		least.work, least.read, most.read = 8, query.ReservedSeats+2, readConns
	}
	if n.has("api") || n.has("projector") { // requests or rebuilds
		most.work = 14
	}
	if len(n.reading) > 0 || n.relaying != nil {
		least.hot, most.hot = 4, 8
	}
	if n.cfg.Pipe == config.PipePostgres {
		least.pipe, most.pipe = 2, 2 // to trim and watch it
		for _, c := range n.consumers() {
			if c.Topic != 0 && n.has(c.Role) {
				least.pipe++
			}
		}
		if n.has("commands") {
			least.pipe++ // of usage.commands
		}
		if most.pipe = least.pipe; n.has("relay") {
			most.pipe += 6
		}
	}
	return least, most
}

func (s sizes) all() int { return s.work + s.hot + s.read + s.look + s.pipe + besideConns }

// sized returns the sizes of the pools of this instance: those that its roles can use, or their shares of METERPLEX_DATABASE_CONNECTIONS.
func (n *Node) sized() (sizes, error) {
	least, most := n.bounds()
	given := int(n.cfg.DatabaseConnections)
	free, wanted := given-least.all(), most.all()-least.all()
	switch {
	case given == 0 || free >= wanted:
		return most, nil
	case free < 0:
		return sizes{}, fmt.Errorf("METERPLEX_DATABASE_CONNECTIONS is %d, and the roles %s need %d (docs/how-to/sizing.md)", given,
			strings.Join(n.cfg.Roles, ", "), least.all())
	}
	share := func(least, most int) int { return least + (most-least)*free/wanted }
	return sizes{
		work: share(least.work, most.work), hot: share(least.hot, most.hot), read: share(least.read, most.read),
		look: share(least.look, most.look), pipe: share(least.pipe, most.pipe),
	}, nil
}

// Connections returns the largest number of connections that an instance opens to the server of DATABASE_URL.
func Connections(cfg config.Config) (int, error) {
	if cfg.Pipe == "" && len(cfg.Kafka.Brokers) == 0 {
		cfg.Pipe = config.PipePostgres
	}
	n := &Node{cfg: cfg}
	n.remember()
	s, err := n.sized()
	return s.all(), err
}

// readTime bounds a statement of a read. It is shorter than the timeout of a request, so that
// the answer can name the reason.
const readTime = 30 * time.Second

// pools are the connections of an instance to its database.
type pools struct {
	sizes   sizes
	pool    *pgxpool.Pool
	hot     *pgxpool.Pool // for the relay and the hot consumers, which process every event
	looks   *pgxpool.Pool // for the grants feed and the checks of the database
	readers *pgxpool.Pool // for HTTP reads, so that they take no connections from event processing
	seats   *query.Seats  // of readers: one tenant's reads take no connections from the others'
	replica *pgxpool.Pool // nil: reads go to the primary database
}

// open opens the pools in their sizes; close closes those that were opened.
func (p *pools) open(ctx context.Context, work postgres.Config, readURL string) (err error) {
	work.MaxConns = int32(p.sizes.work)
	hot, looks, reads := work, work, work
	hot.MaxConns, hot.KeepPlans = int32(p.sizes.hot), true
	looks.MaxConns = int32(p.sizes.look)
	reads.MaxConns, reads.StatementTimeout = int32(p.sizes.read), readTime
	p.seats = query.NewSeats(p.sizes.read, query.ReservedSeats)
	for _, of := range []struct {
		pool   **pgxpool.Pool
		config postgres.Config
	}{{&p.pool, work}, {&p.hot, hot}, {&p.looks, looks}, {&p.readers, reads}} {
		if *of.pool, err = postgres.Open(ctx, of.config); err != nil {
			return err
		}
	}
	if readURL == "" {
		return nil
	}
	reads.URL, reads.MaxConns = readURL, readConns
	if p.replica, err = postgres.Open(ctx, reads); err != nil {
		return fmt.Errorf("DATABASE_READ_URL: %w", err)
	}
	return nil
}

func (p *pools) close() {
	for _, pool := range []*pgxpool.Pool{p.replica, p.looks, p.readers, p.hot, p.pool} {
		if pool != nil {
			pool.Close()
		}
	}
}

// database is a server that an instance connects to, by the setting that names it.
type database struct {
	setting string
	pools   []*pgxpool.Pool
	beside  int // connections of the instance outside of the pools
}

// databases lists the servers of an instance whose pools are open.
func (n *Node) databases() []database {
	list := []database{{"DATABASE_URL", []*pgxpool.Pool{n.pool, n.hot, n.readers, n.looks}, besideConns + n.sizes.pipe}}
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
			"of the login, lower METERPLEX_DATABASE_CONNECTIONS, or run fewer instances (docs/how-to/sizing.md)"
	}
	return slog.LevelInfo, "the database server has enough connections for this instance"
}
