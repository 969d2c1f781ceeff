// Package http serves HTTP, and is the only package that does. It converts requests to calls of
// commands and projections, and their results to JSON or problem+json. It makes no
// decisions about usage, stores no data and knows no database. Each operation declares
// the kind of key and the scopes that it requires; the service does not start if a declaration is
// missing. Each resource has its own file. Package edge holds the steps before a handler.
package http

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/offboarding"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/overview"
)

// Server holds the dependencies of the handlers. It is wired by a struct literal; Handler
// starts it.
type Server struct {
	Ingest       *metering.IngestUsage
	Quotas       *metering.Quotas
	Catalogue    *catalogue.Catalogue
	Accounts     *repair.Accounts
	Letters      *repair.DeadLetters
	Replays      *repair.Replays
	Reader       catalogue.Reader
	ReplayReader repair.ReplayReader
	Keys         catalogue.Keyring
	Reads        models.Reads
	Rebuilds     *repair.Rebuilds
	Periods      *billing.Periods
	Sagas        *commands.Sagas
	SagaReader   commands.SagaReader
	Pushes       *billing.Pushes
	PushReader   billing.PushReader
	Webhooks     *webhooks.Webhooks
	// WebhookReader reads webhooks and their deliveries.
	WebhookReader webhooks.Reader
	Thresholds    *catalogue.Thresholds
	// ThresholdReader reads thresholds.
	ThresholdReader catalogue.ThresholdReader

	Offboarding       *offboarding.Offboarding
	OffboardingReader offboarding.Reader
	Erasures          *offboarding.Erasures
	ErasureReader     offboarding.ErasureReader

	// ConsoleSessions stores the sessions of the console; nil: no part of the console is served.
	ConsoleSessions commands.ConsoleSessions

	// Live shows the overview, and counts the verdicts for it. Its Run has to run beside the server.
	Live *overview.Live

	// Instance describes the instance; its Version is the server's.
	Instance ServiceInstance
	Health   []HealthCheck
	// Backlog, if set, returns how many events wait to be published and the bound: above it,
	// ingest is refused with 429.
	Backlog func() (waiting, bound int64)
	// AdminElsewhere leaves health and metrics out of Handler: AdminHandler serves them at an address
	// of their own.
	AdminElsewhere bool
	// Metrics serves /metrics. Registerer registers the metrics of this package; nil means a
	// registry of its own.
	Metrics    http.Handler
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	Now        commands.Clock
	// NewID, if set, generates request ids; nil means UUIDv7 of the library.
	NewID  func(now time.Time) uuid.UUID
	Limits admission.Limits
	// MaxConnections is the maximum number of open client connections; 0 means the default.
	MaxConnections int64
	// AddressConnections is the maximum number of open connections of one client's address; 0: no bound of its own.
	AddressConnections int64
	// IdleTime is how long a connection without a request stays open; 0 means the default.
	IdleTime time.Duration
	// Settle is the maximum delay of the answer to a change of a subscription, until checks see
	// the change; 0 means the default.
	Settle time.Duration
	// BootstrapOperatorKey is an operator key with every scope that is not stored in any
	// database.
	BootstrapOperatorKey string
	Version              string     // the commit of this build
	Spans                edge.Spans // nil: requests have no spans
}

// HealthCheck is a dependency that /readyz checks.
type HealthCheck struct {
	Name  string
	Check func(ctx context.Context) error
	// Spare dependencies cost only latency while they are down: the instance is ready without
	// them.
	Spare bool
}

// Handler serves the API. It fails if an operation names no kind of caller.
func (s *Server) Handler() (http.Handler, error) {
	return s.handler((*site).operations)
}

// HealthHandler serves only liveness, readiness and metrics, for an instance without the
// API role.
func (s *Server) HealthHandler() (http.Handler, error) {
	return s.handler(func(t *site) { t.healthOperations(t, t.privately) })
}

// AdminHandler serves liveness, readiness, metrics and profiles of the process. They need no key:
// it is for an address that only operators reach.
func (s *Server) AdminHandler() (http.Handler, error) {
	everywhere := func(metrics http.Handler) http.Handler { return metrics }
	return s.handler(func(t *site) { t.healthOperations(t, everywhere); t.profileOperations(t) })
}

func (s *Server) handler(operations func(*site)) (http.Handler, error) {
	site, err := s.site(operations)
	if err != nil {
		return nil, err
	}
	return site.edge.Handle(site.router), nil
}

// site builds the operations behind an edge.
func (s *Server) site(operations func(*site)) (*site, error) {
	e, err := edge.New(edge.Config{Keys: s.Keys, BootstrapOperatorKey: s.BootstrapOperatorKey, Limits: s.Limits, MaxConnections: s.MaxConnections,
		AddressConnections: s.AddressConnections, IdleTime: s.IdleTime,
		Logger: s.Logger, Now: s.Now, NewID: s.NewID, Registerer: s.Registerer, Spans: s.Spans})
	if err != nil {
		return nil, err
	}
	svc := &service{Server: s, edge: e, settle: cmp.Or(s.Settle, settleTime), log: s.Logger, now: s.Now}
	if svc.log == nil {
		svc.log = slog.New(slog.DiscardHandler)
	}
	if svc.now == nil {
		svc.now = time.Now
	}
	if svc.metrics, err = newMetrics(s.Registerer, s.verdicts()); err != nil {
		return nil, fmt.Errorf("register the metrics of ingest: %w", err)
	}
	site := newSite(svc)
	operations(site)
	return site, site.finish()
}

// verdicts are those of the overview; nil for a server without the API.
func (s *Server) verdicts() *overview.Verdicts {
	if s.Live == nil {
		return nil
	}
	return s.Live.Verdicts
}

// NewServer binds a handler to an address, with connection limits. Connection errors are
// logged to the log of the handler's Server.
func NewServer(addr string, handler http.Handler) *http.Server {
	return edge.NewServer(addr, handler)
}

// service is a running Server.
type service struct {
	*Server
	edge    *edge.Edge
	settle  time.Duration
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics
	missing sync.Map // name of a dependency → whether its last check failed
}

// operations registers every route. Each noun has its own file.
func (t *site) operations() {
	t.usageOperations(t)
	t.eventOperations(t)
	t.entitlementOperations(t)
	t.consumeOperations(t)
	t.reservationOperations(t)
	t.accountOperations(t)
	t.tenantOperations(t)
	t.keyOperations(t)
	t.featureOperations(t)
	t.planOperations(t)
	t.priceOperations(t)
	t.subscriptionOperations(t)
	t.deadLetterOperations(t)
	t.replayOperations(t)
	t.projectionOperations(t)
	t.rebuildOperations(t)
	t.periodOperations(t)
	t.adjustmentOperations(t)
	t.sagaOperations(t)
	t.pushOperations(t)
	t.webhookOperations(t)
	t.thresholdOperations(t)
	t.offboardingOperations(t)
	t.erasureOperations(t)
	t.outboxOperations(t)
	t.schemaOperations(t)
	t.systemOperations(t)
	t.overviewOperations(t)
	t.consoleOperations()
}
