package api

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
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

// Dependencies are those of the handlers.
type Dependencies struct {
	Ingest       *metering.IngestUsage
	Quotas       *metering.Quotas
	Catalogue    *catalogue.Commands
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
	Webhooks     *webhooks.Commands
	// WebhookReader reads webhooks and their deliveries.
	WebhookReader webhooks.Reader
	Thresholds    *catalogue.Thresholds
	// ThresholdReader reads thresholds.
	ThresholdReader catalogue.ThresholdReader

	Offboarding       *offboarding.Commands
	OffboardingReader offboarding.Reader
	Erasures          *offboarding.Erasures
	ErasureReader     offboarding.ErasureReader

	// ConsoleSessions stores the sessions of the console; nil: no part of the console is served.
	ConsoleSessions commands.ConsoleSessions
	// PortalFrames are the origins that may embed the page of a link for a tenant's people.
	PortalFrames []string

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

// ServiceInstance is an instance of the service.
type ServiceInstance struct {
	ID       string    `json:"id" doc:"Its name in leases and logs." example:"host-4711-a1b2c3"`
	Version  string    `json:"version" doc:"Its release."`
	Roles    []string  `json:"roles" nullable:"false" doc:"Its roles."`
	Settings []Setting `json:"settings" nullable:"false" doc:"All settings, in the order of config print."`
}

// Setting is a setting of an instance. Its value holds no secret.
type Setting struct {
	Name   string `json:"name" example:"METERPLEX_ROLES"`
	Value  string `json:"value" doc:"Passwords and keys are masked." example:"all"`
	Origin string `json:"origin" example:"environment"`
}

// Service holds the shared parts of all handlers.
type Service struct {
	*Dependencies
	Edge    *edge.Edge
	Settle  time.Duration
	Log     *slog.Logger
	Now     func() time.Time
	Counted *metrics
}

// Build builds operations behind an edge.
func Build(s *Dependencies, operations func(*Site)) (*Site, error) {
	e, err := edge.New(edge.Config{Keys: s.Keys, BootstrapOperatorKey: s.BootstrapOperatorKey, Limits: s.Limits,
		MaxConnections:     s.MaxConnections,
		AddressConnections: s.AddressConnections, IdleTime: s.IdleTime,
		Logger: s.Logger, Now: s.Now, NewID: s.NewID, Registerer: s.Registerer, Spans: s.Spans})
	if err != nil {
		return nil, err
	}
	svc := &Service{Dependencies: s, Edge: e, Settle: cmp.Or(s.Settle, settleTime), Log: s.Logger, Now: s.Now}
	if svc.Log == nil {
		svc.Log = slog.New(slog.DiscardHandler)
	}
	if svc.Now == nil {
		svc.Now = time.Now
	}
	if svc.Counted, err = newMetrics(s.Registerer, s.verdicts()); err != nil {
		return nil, fmt.Errorf("register the metrics of ingest: %w", err)
	}
	t := newSite(svc)
	operations(t)
	return t, t.finish()
}

// verdicts are those of the overview; nil for a server without the API.
func (s *Dependencies) verdicts() *overview.Verdicts {
	if s.Live == nil {
		return nil
	}
	return s.Live.Verdicts
}

// Confirm waits until checks on this instance see a change. The change is already
// durable, and a check sees it soon.
func (s *Service) Confirm(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.Settle)
	defer cancel()
	if err := s.Reads.Entitlements.Confirm(ctx); err != nil {
		s.Log.DebugContext(ctx, "a change was answered before checks see it", "error", err)
	}
}

// settleTime is the maximum delay of the answer to a change of a subscription, until checks see
// the change.
const settleTime = time.Second
