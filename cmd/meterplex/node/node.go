// Package node runs one instance of the service: it connects the roles to the database and the
// pipe, and starts and stops them. It holds no metering rules and parses no command line.
package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	prom "github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/offboardings"
	"github.com/meterplex/meterplex/infra/postgres/store/pushes"
	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
	"github.com/meterplex/meterplex/infra/prometheus"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/stripe"
	"github.com/meterplex/meterplex/infra/tracing"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/overview"
	"github.com/meterplex/meterplex/projections/state"
	"github.com/meterplex/meterplex/projections/validate"
)

// Node is one instance of the service, with the resources that its roles share.
type Node struct {
	cfg      config.Config
	logger   *slog.Logger
	instance string
	commit   string
	pools
	memory
	hints
	watched
	log    *eventlog.Log
	store  *store.Store
	pipe   *pipe
	stripe *stripe.Provider // nil without a key
	// serving is true while the roles run and the API, if the instance has it, accepts requests.
	serving atomic.Bool
	// topicsDoubted is true until the topics were compared with the log: no broker has answered yet.
	topicsDoubted bool
	// Folds are the versions of the folds. They may be changed before Run.
	Folds models.Folds
}

// memory holds the data of the log that the instance keeps, and the progress of its consumers.
type memory struct {
	grants    *entitlements.Cache
	histories *validate.HistoryReader
	recent    *recent.Cache             // for the relay and the consumers of this instance
	relaying  *recent.Reader            // the relay's
	reading   map[string]*recent.Reader // by consumer
	moves     *projections.Moves
	lags      *consume.Lags // of the consumers of this instance
}

// hints wake the loops of this instance.
type hints struct {
	ticks           loop.Ticks      // the moments of looks without a hint
	notifier        *relay.Notifier // of appends, for the readers of the log
	rebuildRequests loop.Hint       // of the command router, for the rebuilder
	// The next three are of changes that start or retry sagas, for the runners of this instance.
	sagaRequests, pushRequests, replayRequests loop.Hint
	deliveryRequests                           loop.Hint // of changes that add deliveries of webhooks, for the deliverer of this instance
	newLife                                    loop.Hint // of the database server, for the pipe if it is in the same database
}

func newHints() hints {
	return hints{ticks: loop.BeginTicks(), rebuildRequests: loop.NewHint(), replayRequests: loop.NewHint(), sagaRequests: loop.NewHint(),
		pushRequests: loop.NewHint(), deliveryRequests: loop.NewHint(), newLife: loop.NewHint()}
}

// watched holds the metrics, traces and state that the instance shows of itself and of the database.
type watched struct {
	registry *prom.Registry
	metrics  *prometheus.Metrics
	state    state.Watch
	live     *overview.Live // runs with the role api
	verdicts overview.Verdicts
	traces   *tracing.Tracing // nil without traces
}

// Open opens an instance's resources. The log names commit as the events' producer.
func Open(ctx context.Context, cfg config.Config, commit string, logger *slog.Logger) (*Node, error) {
	host, _ := os.Hostname()
	n := &Node{cfg: cfg, commit: commit, logger: logger, hints: newHints(), Folds: models.DefaultFolds()}
	n.moves, n.histories, n.registry = &projections.Moves{}, new(validate.HistoryReader), prom.NewRegistry()
	n.instance = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), newID().String()[30:])
	n.metrics = prometheus.New(n.registry, n.state.State, n.sagaNames())
	n.live = &overview.Live{Instance: n.instance, Verdicts: &n.verdicts, State: n.state.State, List: n.projections(),
		Freshness: n.metrics.Freshness, Clock: time.Now}
	n.state.Identity, n.state.Accounts, n.state.Viewed, n.state.Ticks = n.identity, n.compareAccounts, n.live.Viewed, n.ticks
	if cfg.StripeKey != "" {
		n.stripe = stripe.New(cfg.StripeKey, cfg.StripeURL, logger)
	}
	n.remember()
	for _, warning := range cfg.TLSWarnings(time.Now()) {
		logger.Warn("a file of a certificate or key is at fault", "because", warning)
	}
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// open opens the shared resources; close releases those that were opened.
func (n *Node) open(ctx context.Context) (err error) {
	if err := n.startTraces(ctx); err != nil {
		return err
	}
	if n.sizes, err = n.sized(); err != nil {
		return err
	}
	db := postgres.Config{URL: n.cfg.DatabaseURL, ApplicationName: "meterplex"}
	n.tracePool(&db)
	if err := n.pools.open(ctx, db, n.cfg.DatabaseReadURL); err != nil {
		return err
	}
	n.state.Pool = n.pool
	n.grants = entitlements.NewCache(n.looks, n.readers)
	n.grants.UseSeats(n.seats)
	n.histories.Marks = n.grants.LastCatalogue
	n.notifier = relay.NewNotifier(n.pool, n.logger)
	logConfig := eventlog.Config{
		Producer: events.Producer{Service: "meterplex", Instance: n.instance, Commit: n.commit}, Region: n.cfg.Region,
		Now: time.Now, NewID: newID, Logger: n.logger, Ticks: n.ticks, OnAppend: n.notifier.Appended, OnInMemory: n.notifier.InMemory,
		OnRaised: n.raised, HotReads: n.hot, Recent: n.recent, Histories: n.histories,
	}
	n.traceLog(&logConfig)
	if reader, runs := n.reading[events.GroupValidator]; runs {
		logConfig.Inline = consume.NewInline(validate.Consumer(newID, n.histories), reader, n.moves, n.metrics, n.logger)
	}
	if n.log, err = eventlog.New(ctx, n.pool, logConfig); err != nil {
		return err
	}
	n.sampleBy(n.log.ID())
	n.checkConnections(ctx)
	n.store = store.New(n.pool, n.log, store.Config{
		Connections: n.sizes.work, Now: time.Now, Catalogue: n.grants.Catalogue, Admission: edge.AdmissionOf,
	})
	n.metrics.Queue(n.registry, n.log)
	if n.pipe, err = openPipe(ctx, n.cfg, n.sizes.pipe, n.newLife, n.logger); err != nil {
		return err
	}
	// A broker that did not answer is not waited for a second time at the start.
	if n.topicsDoubted = n.pipe.unreached; n.topicsDoubted {
		return nil
	}
	n.topicsDoubted = n.compareTopics(ctx) != nil // compareTopicsLater reports it, if it lasts
	return nil
}

func (n *Node) Close() (err error) {
	if n.log != nil {
		n.log.Close()
	}
	if n.stripe != nil {
		n.stripe.Close()
	}
	if n.pipe != nil {
		err = n.pipe.close()
	}
	n.pools.close()
	n.stopTraces()
	return err
}

// Run starts the roles, sends the endpoints on ready, and stops the roles when ctx
// ends. HTTP stops first, so that the other roles can finish accepted requests, and the
// admin address last.
func (n *Node) Run(ctx context.Context, ready chan<- Endpoints) (err error) {
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if err := projections.CheckVersions(ctx, n.pool, n.projections()); err != nil {
		return err
	}
	admin, err := n.serveAdmin()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, admin.stop()) }()
	roles, working := errgroup.WithContext(inner)
	if err := n.startRoles(working, roles); err != nil {
		stop()
		return errors.Join(err, roles.Wait())
	}
	url, shut, err := n.serveHTTP(working, roles)
	if err != nil {
		stop()
		return errors.Join(err, roles.Wait())
	}
	n.serving.Store(true)
	ready <- Endpoints{URL: url, AdminURL: admin.url, API: n.has("api"), DatabaseURL: n.cfg.DatabaseURL, Kafka: n.cfg.Kafka,
		SignInLink: n.signInLink(url)}
	select {
	case <-ctx.Done():
	case <-working.Done():
	}
	n.serving.Store(false)
	err = shut()
	stop()
	return errors.Join(err, roles.Wait())
}

// raised is called after this instance began epochs of the log.
func (n *Node) raised(epochs []eventlog.Raised) {
	n.metrics.Raised(epochs)
	n.newLife.Notify()
}

func (n *Node) has(role string) bool { return slices.Contains(n.cfg.Roles, role) }

// startRoles starts all roles except the API.
func (n *Node) startRoles(ctx context.Context, g *errgroup.Group) error {
	g.Go(func() error { return n.notifier.Run(ctx) })
	g.Go(func() error { return n.pipe.tidy(ctx) })
	g.Go(func() error { return n.compareTopicsLater(ctx) })
	g.Go(func() error { return n.state.Run(ctx) })
	g.Go(func() error { return n.state.Identify(ctx) })
	// This pool never waits for locks that a frozen session holds.
	frozen := &postgres.FrozenSessions{Pool: n.looks, Logger: n.logger, Ticks: n.ticks, Ended: n.metrics.FrozenEnded}
	g.Go(func() error { return frozen.Run(ctx) })
	g.Go(func() error { return n.reports().Run(ctx) })
	g.Go(func() error { return postgres.WatchRequired(ctx, n.looks, postgres.DefaultRequiredEvery) })
	if n.has("relay") {
		g.Go(func() error { return n.relay().Run(ctx) })
		g.Go(func() error { return n.runSagas(ctx, n.replayKinds(), n.replayRequests, 0, 0) })
	}
	if n.has("commands") {
		g.Go(func() error { return (&metering.Expiry{Quotas: n.quotas(), Logger: n.logger, Ticks: n.ticks}).Run(ctx) })
		if err := n.startUsageCommands(ctx, g); err != nil {
			return err
		}
	}
	if n.has("sagas") {
		g.Go(func() error { return n.runSagas(ctx, n.sagaKinds(), n.sagaRequests, 0, sagaRests) })
	}
	if n.has("biller") {
		g.Go(func() error { return n.runSagas(ctx, n.pushKinds(), n.pushRequests, pushSlots, 0) })
	}
	if n.has("notifier") {
		g.Go(func() error { return n.deliverWebhooks(ctx) })
	}
	if n.has("projector") {
		g.Go(func() error { return n.rebuilder().Run(ctx) })
	}
	for _, p := range n.periodics() {
		if n.has(p.role) {
			g.Go(func() error { return loop.Loop{Every: p.every, Logger: n.logger, Failed: p.failed}.Run(ctx, p.look) })
		}
	}
	own := slices.DeleteFunc(n.consumers(), func(c projections.Consumer) bool { return !n.has(c.Role) })
	n.lags = consume.NewLags(n.hot, own)
	for _, consumer := range own {
		if err := n.startConsumer(ctx, g, consumer); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) quotas() *metering.Quotas {
	return &metering.Quotas{Log: n.log, Reservations: n.store, Now: time.Now, NewID: newIDAt}
}

// followed hints the relay of follow-ups. Those of which a consumer of this process is notified are not urgent.
func (n *Node) followed(partitions []int16, notified bool) {
	if notified {
		n.notifier.InMemory(partitions)
	} else {
		n.notifier.Followed(partitions)
	}
}

func runRouter(ctx context.Context, router *message.Router, subs ...message.Subscriber) error {
	err := router.Run(ctx)
	if err == nil && ctx.Err() == nil {
		err = errors.New("a consumer ended although the service runs") // better no instance than one that falls behind in silence
	}
	for _, sub := range subs {
		err = errors.Join(err, sub.Close())
	}
	return err
}

// catalogue reads the tables of the write side for a request, with the seats of its reader: the tenant whose key it has, or the operators.
func (n *Node) catalogue() *store.Catalogue {
	return &store.Catalogue{Pool: n.readers, Seat: func(ctx context.Context) (context.Context, func(), error) {
		return n.seats.Reader(ctx, edge.TenantOf(ctx))
	}}
}

// api wires the handlers.
func (n *Node) api(ctx context.Context, g *errgroup.Group, s *http.Server) {
	seen := &metering.UsageSeen{Store: n.store, Now: time.Now, NewID: newID, Logger: n.logger}
	g.Go(func() error { return seen.Run(ctx) })
	g.Go(func() error { return n.grants.Run(ctx) })
	s.Ingest = &metering.IngestUsage{
		Log: n.log, Histories: n.store.Histories, Now: time.Now, Window: domain.TimestampWindow{Ahead: n.cfg.IngestAhead,
			Behind: n.cfg.IngestBehind}, NewID: newIDAt, Seen: seen,
	}
	s.Quotas = n.quotas()
	s.Catalogue = &catalogue.Commands{Store: n.store, Now: time.Now, NewID: newID, NewSecret: newSecret, Region: n.cfg.Region}
	s.Accounts = &repair.Accounts{Store: &repairs.Accounts{Store: n.store}, Now: time.Now, NewID: newID}
	s.Letters = &repair.DeadLetters{Store: n.store, Now: time.Now, NewID: newID}
	s.Replays, s.Rebuilds, s.Reads = n.replays(), n.rebuilds(), n.reads()
	s.Reader, s.ReplayReader, s.Keys = n.catalogue(), n.replayStore(), n.store.Keys
	s.Periods = n.periods()
	s.Sagas, s.SagaReader = n.sagas(), n.catalogue()
	s.Offboarding, s.OffboardingReader = n.offboarding(), n.catalogue()
	s.Erasures, s.ErasureReader = n.erasures(), offboardings.Reader{Catalogue: n.catalogue()}
	s.Pushes, s.PushReader = n.pushes(), pushes.Reader{Catalogue: n.catalogue()}
	s.Webhooks, s.WebhookReader = n.webhooks(), n.catalogue()
	s.Thresholds, s.ThresholdReader = &catalogue.Thresholds{Store: n.store, Now: time.Now, NewID: newID}, n.catalogue()
	if n.cfg.Console {
		s.ConsoleSessions, s.PortalFrames = store.NewConsoleSessions(n.pool), n.cfg.PortalFrames
	}
	s.Backlog = n.backlog
	s.Live = n.live
	g.Go(func() error { return s.Live.Run(ctx) })
	s.BootstrapOperatorKey = n.cfg.BootstrapOperatorKey
}

// backlog returns how many events wait for their first publication, as last read, and the bound.
func (n *Node) backlog() (waiting, bound int64) {
	return n.state.State().Outbox.Totals.Unpublished, maxBacklog
}

// maxBacklog is how many events may wait to be published before new ones are
// refused with a retry-later answer: more than a day's outage at 100 events/s,
// and still drained in minutes.
const maxBacklog = 10_000_000

func newSecret() (secret [32]byte) {
	_, _ = rand.Read(secret[:]) // never fails
	return secret
}
