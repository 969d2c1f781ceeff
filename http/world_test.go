package http_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	nethttp "net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/closes"
	"github.com/meterplex/meterplex/infra/postgres/store/offboardings"
	"github.com/meterplex/meterplex/infra/postgres/store/pushes"
	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/overview"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/refusals"
	"github.com/meterplex/meterplex/projections/state"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/projections/validate"
)

func TestMain(m *testing.M) {
	// Answers are in UTC in any local time zone.
	time.Local = time.FixedZone("elsewhere", 5*3600+30*60)
	localtest.Main(m, localtest.NoLeaks())
}

// bootstrap is the bootstrap operator key of a test service.
const bootstrap = "mp_op_bootstrap-bootstrap-bootstrap-bootstrap"

// testService is a server with its dependencies except a message pipe: fold does the work of
// relay and consumers.
type testService struct {
	testing.TB
	pool   *pgxpool.Pool
	log    *eventlog.Log
	store  *store.Store
	grants *entitlements.Cache
	url    string
	addr   string
	client *nethttp.Client
	seen   *metering.UsageSeen
}

func newTestService(t testing.TB, change ...func(*http.Server)) *testService {
	t.Helper()
	w := &testService{TB: t}
	url := localtest.Migrated(t, postgres.Migrate)
	config, err := postgres.PoolConfig(postgres.Config{URL: url, ApplicationName: "test"})
	w.must(err)
	w.pool, err = localtest.KeepPlans(config)
	w.must(err)
	t.Cleanup(w.pool.Close)
	w.log = w.newLog(w.pool, "test", nil)
	w.store = store.New(w.pool, w.log, store.Config{Admission: edge.AdmissionOf})
	w.grants = entitlements.NewCache(w.pool, w.pool)
	w.seen = &metering.UsageSeen{Store: w.store, Now: time.Now, NewID: newID, Logger: slog.New(slog.DiscardHandler)}
	s := w.server()
	for _, c := range change {
		c(s)
	}
	w.serve(s)
	return w
}

// newLog returns the writers of an instance; without a clock, that of the machine is theirs.
func (w *testService) newLog(pool *pgxpool.Pool, instance string, clock func() time.Time) *eventlog.Log {
	w.Helper()
	log, err := eventlog.New(w.Context(), pool, eventlog.Config{Producer: events.Producer{Service: "meterplex", Instance: instance,
		Commit: "0"},
		Now: clock, Histories: new(validate.HistoryReader), Written: localtest.CheckPayloads(w.TB).Written})
	w.must(err)
	w.Cleanup(log.Close)
	return log
}

// throughCutter returns a store whose connections to the database lose COMMITs and their answers on demand.
func (w *testService) throughCutter(t *testing.T, connections int32) (*localtest.Cutter, *pgxpool.Pool, *store.Store) {
	w.Helper()
	cutter, url := localtest.NewCutter(t, w.pool.Config().ConnString())
	pool, err := postgres.Open(w.Context(), postgres.Config{URL: url, ApplicationName: "cut", MaxConns: connections})
	w.must(err)
	w.Cleanup(pool.Close)
	return cutter, pool, store.New(pool, w.newLog(pool, "cut", nil), store.Config{})
}

// newServiceWithAccount is a test service with its catalogue and an account.
func newServiceWithAccount(t testing.TB, change ...func(*http.Server)) (w *testService, a *account) {
	t.Helper()
	w = newTestService(t, change...)
	w.catalogue()
	return w, w.newAccount("A")
}

func (w *testService) must(err error) {
	w.Helper()
	must.OK(w, err)
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func (w *testService) rebuildStore() *repairs.Rebuilds {
	return &repairs.Rebuilds{Store: w.store, List: models.List(doublingFolds(), nil)}
}

func (w *testService) server() *http.Server {
	secret := func() (b [32]byte) { _, _ = rand.Read(b[:]); return b }
	registry := prometheus.NewRegistry()
	return &http.Server{
		Ingest: &metering.IngestUsage{Log: w.log, Histories: w.store.Histories, Now: time.Now,
			Window: domain.TimestampWindow{Ahead: 5 * time.Minute, Behind: 7 * 24 * time.Hour}, NewID: func(time.Time) uuid.UUID {
				return newID()
			}, Seen: w.seen},
		Quotas:    &metering.Quotas{Log: w.log, Reservations: w.store, Now: time.Now, NewID: func(time.Time) uuid.UUID { return newID() }},
		Catalogue: &catalogue.Commands{Store: w.store, Now: time.Now, NewID: newID, NewSecret: secret},
		Accounts:  &repair.Accounts{Store: &repairs.Accounts{Store: w.store}, Now: time.Now, NewID: newID},
		Letters:   &repair.DeadLetters{Store: w.store, Now: time.Now, NewID: newID},
		Replays:   &repair.Replays{Store: &repairs.Replays{Store: w.store}, Now: time.Now, NewID: newID},
		Reader:    &store.Catalogue{Pool: w.pool}, ReplayReader: &repairs.Replays{Store: w.store}, Keys: w.store.Keys,
		Reads:    models.NewReads(query.DB{Pool: w.pool}, w.grants, models.DefaultFolds(), time.Now, 0),
		Rebuilds: rebuildsBy(w.rebuildStore(), models.DefaultFolds()),
		Periods:  w.periods(),
		Sagas: &commands.Sagas{Store: &store.Sagas{Store: w.store}, Kinds: []commands.SagaKind{w.periods().CloseKind(),
			w.offboarding().OffboardingKind()}, Logger: slog.New(slog.DiscardHandler)}, SagaReader: &store.Catalogue{Pool: w.pool},
		Offboarding: w.offboarding(), OffboardingReader: &store.Catalogue{Pool: w.pool},
		Erasures: w.erasures(), ErasureReader: offboardings.Reader{Catalogue: &store.Catalogue{Pool: w.pool}},
		Pushes: w.pushes(nil), PushReader: pushes.Reader{Catalogue: &store.Catalogue{Pool: w.pool}},
		Webhooks: w.webhooks(), WebhookReader: &store.Catalogue{Pool: w.pool},
		Thresholds: &catalogue.Thresholds{Store: w.store, Now: time.Now, NewID: newID}, ThresholdReader: &store.Catalogue{Pool: w.pool},
		ConsoleSessions: store.NewConsoleSessions(w.pool),
		Live: &overview.Live{Instance: "test", Verdicts: new(overview.Verdicts), State: func() *state.State {
			return new(state.State)
		}, List: models.List(models.DefaultFolds(), nil),
			Freshness: func() []overview.Distribution { return nil }, Clock: time.Now},
		Health:  []api.HealthCheck{{Name: "postgres", Check: w.pool.Ping}},
		Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), Registerer: registry,
		Logger: slog.New(slog.DiscardHandler), Now: time.Now, BootstrapOperatorKey: bootstrap, Version: "test",
		Settle: time.Nanosecond, // no test folds while a request waits
	}
}

func (w *testService) webhooks() *webhooks.Commands {
	secret := func() (b [32]byte) { _, _ = rand.Read(b[:]); return b }
	return &webhooks.Commands{Store: &store.Webhooks{Store: w.store, NewID: newID}, Now: time.Now, NewID: newID, NewSecret: secret}
}

func (w *testService) periods() *billing.Periods {
	return &billing.Periods{Store: &closes.Periods{Store: w.store, Figures: models.DefaultFolds().PeriodFigures()}, Now: time.Now,
		NewID: newID, Logger: slog.New(slog.DiscardHandler)}
}

func (w *testService) serve(s *http.Server) { w.serveWith(s, func(*nethttp.Server) {}) }

// serveWith serves with other timeouts of connections.
func (w *testService) serveWith(s *http.Server, change func(*nethttp.Server)) {
	handler, err := s.Handler()
	w.must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	server := http.NewServer("", handler)
	change(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	w.addr, w.url = listener.Addr().String(), "http://"+listener.Addr().String()
	w.client = &nethttp.Client{
		Transport:     &nethttp.Transport{},
		CheckRedirect: func(*nethttp.Request, []*nethttp.Request) error { return nethttp.ErrUseLastResponse },
	}
	w.Cleanup(func() {
		w.client.CloseIdleConnections()
		_ = server.Close()
		<-done
		w.requireNothingHeld(s.Registerer)
	})
}

// call is a request of a test. body is a string, bytes or a value that is sent as JSON. A
// header set to "" is omitted.
type call struct {
	method, path, key string
	header            map[string]string
	body              any
}

// answer is the response to a call.
type answer struct {
	status int
	header nethttp.Header
	body   []byte
}

func (w *testService) do(c call) answer {
	w.Helper()
	var body []byte
	header := nethttp.Header{}
	switch b := c.body.(type) {
	case nil:
	case string:
		body = []byte(b)
	case []byte:
		body = b
	default:
		var err error
		body, err = json.Marshal(b)
		w.must(err)
	}
	if c.body != nil {
		header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		header.Set("Authorization", "Bearer "+c.key)
	}
	for name, value := range c.header {
		header.Del(name)
		if value != "" {
			header.Set(name, value)
		}
	}
	request, err := nethttp.NewRequest(c.method, w.url+c.path, bytes.NewReader(body))
	w.must(err)
	request.Header = header
	response, err := w.client.Do(request)
	w.must(err)
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	w.must(err)
	return answer{response.StatusCode, response.Header, got}
}

// want sends a call, expects a status and decodes the answer.
func (w *testService) want(status int, c call) map[string]any {
	w.Helper()
	a := w.do(c)
	if a.status != status {
		w.Fatalf("%s %s: %d instead of %d: %s", c.method, c.path, a.status, status, a.body)
	}
	var m map[string]any
	if len(a.body) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(a.body))
		decoder.UseNumber()
		w.must(decoder.Decode(&m))
	}
	return m
}

// account is a tenant with a subscription to plan "basic" and keys.
type account struct {
	id, subscription string
	key, keyID       string // with every scope
	reader, writer   string // with usage:read, with usage:write
	letterID         string
}

// catalogue creates the features and the plan that accounts subscribe to.
func (w *testService) catalogue() {
	w.Helper()
	for key, feature := range map[string]any{"api_calls": map[string]any{"name": "Calls", "type": "QUOTA",
		"groupBy": []string{"region", "model"}}, "storage": map[string]any{"name": "S", "type": "METERED"},
		"sso": map[string]any{"name": "sso", "type": "BOOLEAN"}} {
		w.want(201, call{"PUT", "/api/v1/features/" + key, bootstrap, nil, feature})
	}
	w.want(201, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, map[string]any{"name": "Basic", "entitlements": []any{
		map[string]any{"feature": "api_calls", "limit": 1000, "limitBehavior": "HARD", "resetPeriod": "MONTHLY"},
		map[string]any{"feature": "storage", "limit": nil, "resetPeriod": "NEVER"},
		map[string]any{"feature": "sso"},
	}}})
}

func (p *account) partition() int16 { return events.PartitionOf(uuid.MustParse(p.id)) }

func (w *testService) newAccount(name string) *account {
	w.Helper()
	return w.newAccountIn(name, func(int16) bool { return true })
}

// newAccountIn creates tenants until the partition of one fits.
func (w *testService) newAccountIn(name string, fits func(partition int16) bool) *account {
	w.Helper()
	p := &account{}
	for p.id == "" || !fits(p.partition()) {
		p.id = w.newAccountlessTenant(name)
	}
	p.subscription = w.want(201, call{"POST", "/api/v1/tenants/" + p.id + "/subscriptions", bootstrap, nil,
		map[string]any{"plan": "basic", "startsAt": "2020-01-01T00:00:00Z"}})["id"].(string)
	p.key, p.keyID = w.key(p.id, nil, commands.TenantScopes()...)
	p.reader, _ = w.key(p.id, nil, commands.ScopeUsageRead)
	p.writer, _ = w.key(p.id, nil, commands.ScopeUsageWrite)
	return p
}

// key creates a tenant key, or an operator key if tenant is "".
func (w *testService) key(tenant string, more map[string]any, scopes ...string) (secret, id string) {
	w.Helper()
	path := "/api/v1/operator-keys"
	if tenant != "" {
		path = "/api/v1/tenants/" + tenant + "/api-keys"
	}
	body := map[string]any{"name": "a key", "scopes": scopes}
	for k, v := range more {
		body[k] = v
	}
	made := w.want(201, call{"POST", path, bootstrap, nil, body})
	return made["secret"].(string), made["id"].(string)
}

// event returns a usage event at the current time, with members added or replaced; a nil
// member is omitted.
func event(id string, more map[string]any) map[string]any {
	e := map[string]any{"eventId": id, "feature": "api_calls", "amount": 1, "timestamp": now()}
	for k, v := range more {
		if e[k] = v; v == nil {
			delete(e, k)
		}
	}
	return e
}

func now() string                        { return time.Now().UTC().Format(time.RFC3339Nano) }
func batch(events ...any) map[string]any { return map[string]any{"events": events} }

// stored counts the rows of the log.
func (w *testService) stored() (n int) {
	w.Helper()
	w.must(w.pool.QueryRow(context.Background(), `SELECT count(*) FROM event_log_rows`).Scan(&n))
	return n
}

// fold applies the log up to its head to every projection and to the entitlement cache,
// without a message pipe.
func (w *testService) fold() {
	w.Helper()
	for _, c := range []projections.Consumer{
		validate.Consumer(newID, new(validate.HistoryReader)),
		usage.Consumer(newID, models.DefaultFolds().Usage),
		deadletters.Consumer(models.DefaultFolds().DeadLetters),
	} {
		w.feed(c)
	}
	w.sum()
	w.follow()
	for until := time.Now().Add(time.Minute); ; { // a confirmation that takes too long does not count
		err := w.grants.Confirm(context.Background())
		if err == nil {
			return
		}
		if time.Now().After(until) {
			w.Fatal(err)
		}
	}
}

// recordSeen records the duplicates and refusals that the service has seen, as an instance does each second, and folds the refusals.
func (w *testService) recordSeen() {
	w.Helper()
	ended, end := context.WithCancel(w.Context())
	end()
	w.must(w.seen.Run(ended))
	w.feed(refusals.Consumer(models.DefaultFolds().Refusals))
}

func (w *testService) runner(c projections.Consumer) *consume.Runner {
	return &consume.Runner{Pool: w.pool, Log: w.log, Consumer: c, NewID: newID, Logger: slog.New(slog.DiscardHandler),
		Observe: localtest.CheckPayloads(w.TB).Observer(nil)}
}

func (w *testService) feed(c projections.Consumer) {
	w.Helper()
	w.must(w.runner(c).Process(context.Background(), w.records(c)))
}

// records returns the records of all events of a consumer's topic.
func (w *testService) records(c projections.Consumer) (records []events.Record) {
	w.Helper()
	w.must(pgx.BeginFunc(context.Background(), w.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(context.Background(), `SELECT partition FROM log_heads WHERE position > 0 ORDER BY partition`)
		if err != nil {
			return err
		}
		partitions, err := pgx.CollectRows(rows, pgx.RowTo[int16])
		if err != nil {
			return err
		}
		for _, partition := range partitions {
			list, err := w.log.ReadTx(context.Background(), tx, partition, 0, 1<<62, c.Topic, 1<<20)
			if err != nil {
				return err
			}
			for i := range list {
				r, err := codec.ToRecord(&list[i])
				if err != nil {
					return err
				}
				records = append(records, r)
			}
		}
		return nil
	}))
	return records
}

// follow lets the entitlement cache follow the log until it has reached the head.
func (w *testService) follow() {
	w.Helper()
	r := w.runner(entitlements.Consumer(models.DefaultFolds().Entitlements, newID))
	for until := time.Now().Add(time.Minute); ; {
		ahead, err := r.Ahead(context.Background())
		w.must(err)
		if len(ahead) == 0 {
			return
		}
		if _, err := r.ReadUpTo(context.Background(), ahead); err != nil {
			if time.Now().After(until) {
				w.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
}
