// Package http is the only one that serves HTTP: it turns requests into calls of
// commands and projections, and what they answer into JSON or problem+json. It
// decides nothing about usage, holds no state that must survive it, and knows no
// database. Every route it serves has a row in one table, which says who may call
// it; what has no row does not start.
package http

import (
	"context"
	"fmt"
	"log/slog"
	nethttp "net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/projections/models"
)

// Server holds what the handlers need. It is wired by a struct literal; Handler
// makes it serve.
type Server struct {
	Ingest    *commands.IngestUsage
	Catalogue *commands.Catalogue
	Letters   *commands.DeadLetters
	Replays   *commands.Replays
	Reader    commands.CatalogueReader
	Keys      commands.Keyring
	Reads     models.Reads
	Rebuilds  *commands.Rebuilds
	Health    []HealthCheck
	// Backlog, where it is set, tells how many events wait to be published and how
	// many may: ingest is refused with 429 above that.
	Backlog func() (waiting, bound int64)
	// Metrics answers /metrics; Registerer takes the metrics of this package, nil
	// for a registry of its own.
	Metrics    nethttp.Handler
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	Now        commands.Clock
	// NewID, where it is set, makes the ids of requests; nil: the library does.
	NewID  func(now time.Time) uuid.UUID
	Limits Limits
	// BootstrapOperatorKey is an operator key with every scope that no store knows.
	BootstrapOperatorKey string
	Version              string
}

// HealthCheck is a dependency that /readyz asks about.
type HealthCheck struct {
	Name  string
	Check func(ctx context.Context) error
	// Spare is one that costs latency only while it is away: the instance is ready without it.
	Spare bool
}

// Limits bound what one request, and all of them together, may take. Zero fields
// take the values of DefaultLimits.
type Limits struct {
	// Body is how many bytes a body may have, as sent and decompressed.
	Body int64
	// Requests is how many ingest requests may be in work at the same time, Others how
	// many of all other kinds; more are told to come again.
	Requests, Others int64
	// Memory is how many bytes the requests in work may take together; those of one
	// tenant half as many.
	Memory int64
	// Connections is how many clients may hold open.
	Connections int64
	// Time is how long one request may be in work.
	Time time.Duration
	// Settle is how long the answer to a change of a subscription is held back until
	// checks see it.
	Settle time.Duration
	// EventsPerSecond and EventsBurst bound the ingest of one tenant.
	EventsPerSecond, EventsBurst float64
}

// DefaultLimits are generous: they keep one client from taking the service down,
// they are no commercial quota.
func DefaultLimits() Limits {
	return Limits{
		Body:            4 << 20,
		Requests:        2048,
		Others:          1024,
		Memory:          64 << 20,
		Connections:     4096,
		Time:            40 * time.Second, // more than the longest wait a reader may ask for
		Settle:          time.Second,
		EventsPerSecond: 100_000,
		EventsBurst:     200_000,
	}
}

func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	if l.Body == 0 {
		l.Body = d.Body
	}
	if l.Requests == 0 {
		l.Requests = d.Requests
	}
	if l.Others == 0 {
		l.Others = d.Others
	}
	if l.Memory == 0 {
		l.Memory = d.Memory
	}
	if l.Connections == 0 {
		l.Connections = d.Connections
	}
	if l.Time == 0 {
		l.Time = d.Time
	}
	if l.Settle == 0 {
		l.Settle = d.Settle
	}
	if l.EventsPerSecond == 0 {
		l.EventsPerSecond = d.EventsPerSecond
	}
	if l.EventsBurst == 0 {
		l.EventsBurst = d.EventsBurst
	}
	return l
}

// Handler serves the API. It is an error when a route is not in the route table
// or a row of the table is not served.
func (s *Server) Handler() (nethttp.Handler, error) {
	return s.handler(Routes(), (*service).operations)
}

// HealthHandler serves what every instance answers, for one that has no part in the API:
// whether it lives, whether it can work, and its metrics.
func (s *Server) HealthHandler() (nethttp.Handler, error) {
	return s.handler(healthRoutes(), (*service).healthOperations)
}

func (s *Server) handler(routes []Route, operations func(*service, *site)) (nethttp.Handler, error) {
	svc := &service{Server: s, limits: s.Limits.orDefault(), log: s.Logger, now: s.Now, ingestRate: newRates(), leaving: make(chan struct{})}
	if svc.log == nil {
		svc.log = slog.New(slog.DiscardHandler)
	}
	if svc.now == nil {
		svc.now = time.Now
	}
	if svc.newID = s.NewID; svc.newID == nil {
		svc.newID = func(time.Time) uuid.UUID { return uuid.Must(uuid.NewV7()) }
	}
	svc.ratePolicy = ratePolicy(svc.limits)
	if err := svc.readBootstrapKey(); err != nil {
		return nil, err
	}
	var err error
	if svc.metrics, err = newMetrics(s.Registerer, svc.inFlight()...); err != nil {
		return nil, fmt.Errorf("register the metrics of HTTP: %w", err)
	}
	site := newSite(svc, routes)
	operations(svc, site)
	if err := site.finish(); err != nil {
		return nil, err
	}
	return &edge{service: svc, next: site.router}, nil
}

// Times a connection may take, so that slow clients cannot hold it for ever. The
// longest answer waits 30 s for a projection.
const (
	headerTime = 10 * time.Second
	readTime   = 60 * time.Second
	writeTime  = 90 * time.Second
	idleTime   = 120 * time.Second
	maxHeader  = 32 << 10
)

// NewServer binds a handler to an address with the limits that belong to
// connections rather than requests. What goes wrong on a connection is logged
// where the handler of a Server logs.
func NewServer(addr string, handler nethttp.Handler) *nethttp.Server {
	logs := slog.DiscardHandler
	if e, ok := handler.(*edge); ok {
		logs = e.log.Handler()
	}
	server := &nethttp.Server{
		Addr:              addr,
		Handler:           handler,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       readTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		// OPTIONS * is answered as anything else that no route has, with what all answers have.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(logs, slog.LevelDebug),
	}
	if e, ok := handler.(*edge); ok {
		server.ConnContext, server.ConnState = e.connected, e.connection
		server.RegisterOnShutdown(func() { e.left.Do(func() { close(e.leaving) }) })
	}
	return server
}

// service is a Server at work.
type service struct {
	*Server
	limits      Limits
	log         *slog.Logger
	now         func() time.Time
	metrics     *metrics
	newID       func(now time.Time) uuid.UUID
	ingestRate  *rates
	ratePolicy  []string // the header
	bootstrap   *[32]byte
	ingests     counter // ingest requests in work
	others      counter
	memory      counter // bytes that requests in work take
	connections counter
	unpackers   unpackers
	leaving     chan struct{} // closed when the server shuts down: what streams for ever ends
	left        sync.Once
}

// operations registers every route. Each noun has its own file.
func (s *service) operations(site *site) {
	s.usageOperations(site)
	s.eventOperations(site)
	s.entitlementOperations(site)
	s.tenantOperations(site)
	s.keyOperations(site)
	s.featureOperations(site)
	s.planOperations(site)
	s.subscriptionOperations(site)
	s.deadLetterOperations(site)
	s.replayOperations(site)
	s.projectionOperations(site)
	s.rebuildOperations(site)
	s.systemOperations(site)
}
