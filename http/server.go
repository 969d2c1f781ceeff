// Package http is the only package that serves HTTP. It converts requests to calls of
// commands and projections, and their results to JSON or problem+json. It makes no
// decisions about usage, holds no durable state and knows no database. Every operation
// says who may call it; the service does not start if one does not.
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

// Server holds the dependencies of the handlers. It is wired by a struct literal; Handler
// starts it.
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
	// Backlog, if set, returns how many events wait to be published and the bound: above it,
	// ingest is refused with 429.
	Backlog func() (waiting, bound int64)
	// Metrics serves /metrics. Registerer registers the metrics of this package; nil means a
	// registry of its own.
	Metrics    nethttp.Handler
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	Now        commands.Clock
	// NewID, if set, generates request ids; nil means UUIDv7 of the library.
	NewID  func(now time.Time) uuid.UUID
	Limits Limits
	// BootstrapOperatorKey is an operator key with every scope that is not stored in any
	// database.
	BootstrapOperatorKey string
	Version              string
}

// HealthCheck is a dependency that /readyz checks.
type HealthCheck struct {
	Name  string
	Check func(ctx context.Context) error
	// Spare dependencies cost only latency while they are down: the instance is ready without
	// them.
	Spare bool
}

// Limits bounds the resources of one request and of all requests together. Zero fields
// mean the values of DefaultLimits.
type Limits struct {
	// Body is the maximum size of a body in bytes, both as sent and decompressed.
	Body int64
	// Requests is the maximum number of ingest requests in flight, Others that of all other
	// requests. Requests above it are refused and may be retried.
	Requests, Others int64
	// Memory bounds the bytes that requests in flight hold; one tenant may hold half of it.
	Memory int64
	// Connections is the maximum number of open client connections.
	Connections int64
	// Time is the timeout of a request.
	Time time.Duration
	// Settle is the maximum delay of the answer to a change of a subscription, until checks
	// see the change.
	Settle time.Duration
	// EventsPerSecond and EventsBurst limit the ingest rate of one tenant.
	EventsPerSecond, EventsBurst float64
}

// DefaultLimits returns generous limits. They stop one client from overloading the
// service; they are not a commercial quota.
func DefaultLimits() Limits {
	return Limits{
		Body:            4 << 20,
		Requests:        2048,
		Others:          1024,
		Memory:          64 << 20,
		Connections:     4096,
		Time:            40 * time.Second, // more than maxWait
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

// Handler serves the API. It fails if an operation does not say who may call it.
func (s *Server) Handler() (nethttp.Handler, error) {
	return s.handler((*site).operations)
}

// HealthHandler serves only liveness, readiness and metrics, for an instance without the
// API role.
func (s *Server) HealthHandler() (nethttp.Handler, error) {
	return s.handler(func(t *site) { t.healthOperations(t) })
}

func (s *Server) handler(operations func(*site)) (nethttp.Handler, error) {
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
	site := newSite(svc)
	operations(site)
	if err := site.finish(); err != nil {
		return nil, err
	}
	return &edge{service: svc, next: site.router}, nil
}

// Connection timeouts, so that slow clients cannot hold a connection forever. The longest
// answer waits 30 s for a projection.
const (
	headerTime = 10 * time.Second
	readTime   = 60 * time.Second
	writeTime  = 90 * time.Second
	idleTime   = 120 * time.Second
	maxHeader  = 32 << 10
)

// NewServer binds a handler to an address, with connection limits. Connection errors are
// logged to the log of the handler's Server.
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
		// OPTIONS * is handled like any unknown route, with the common headers.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(logs, slog.LevelDebug),
	}
	if e, ok := handler.(*edge); ok {
		server.ConnContext, server.ConnState = e.connected, e.connection
		server.RegisterOnShutdown(func() { e.left.Do(func() { close(e.leaving) }) })
	}
	return server
}

// service is a running Server.
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
	ingests     counter // ingest requests in flight
	others      counter
	memory      counter // bytes held by requests in flight
	connections counter
	unpackers   unpackers
	leaving     chan struct{} // closed when the server shuts down, to end streams
	left        sync.Once
}

// operations registers every route. Each noun has its own file.
func (t *site) operations() {
	t.usageOperations(t)
	t.eventOperations(t)
	t.entitlementOperations(t)
	t.tenantOperations(t)
	t.keyOperations(t)
	t.featureOperations(t)
	t.planOperations(t)
	t.subscriptionOperations(t)
	t.deadLetterOperations(t)
	t.replayOperations(t)
	t.projectionOperations(t)
	t.rebuildOperations(t)
	t.systemOperations(t)
}
