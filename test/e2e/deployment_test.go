package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// deployment is a test's database, topics, instances and tenants. A test starts instances (serve), creates tenants, sends usage (ingest, or
// startLoad), applies its fault, drains the backlog, and checks everything with finish.
type deployment struct {
	t        testing.TB
	seed     uint64
	db       string // the owner's URL
	prefix   string
	pipe     string
	operator string        // key
	sql      *pgxpool.Pool // the superuser's
	http     *http.Client
	cluster  kafkatest.Cluster // nil: the binary's broker
	servers  *serverPair       // nil: the binary's server
	access   []string          // settings of the connections to the broker, for verify and doctor

	mu        sync.Mutex
	instances []*instance
	tenants   []*tenant
	loads     int // number of loads begun
}

// newDeployment has a database with the service's schema.
func newDeployment(t testing.TB) *deployment {
	t.Helper()
	database := localtest.Migrated(t, migrate)
	return newDeploymentAt(t, database, localtest.SuperuserURL(t, database))
}

// newEmptyDeployment has an empty database.
func newEmptyDeployment(t testing.TB) *deployment {
	t.Helper()
	database := localtest.Database(t)
	return newDeploymentAt(t, database, localtest.SuperuserURL(t, database))
}

// newDeploymentOn uses the database of a pair of servers.
func newDeploymentOn(p *serverPair) *deployment {
	w := newDeploymentAt(p.t, p.url(), p.adminURL())
	w.servers = p
	return w
}

// migrate brings a database to the schema of the service, and returns the number of migrations.
func migrate(ctx context.Context, url string) (applied int, err error) {
	path, err := binary()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, path, "migrate", "-o", "json")
	cmd.SysProcAttr = childAttributes()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), "DATABASE_URL=" + url, "METERPLEX_PIPE=postgres"}
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("migrate: %w: %s", err, out)
	}
	var answer struct{ Applied *int }
	if err := json.Unmarshal(out, &answer); err != nil || answer.Applied == nil {
		return 0, fmt.Errorf("migrate answers %s: %w", out, err)
	}
	return *answer.Applied, nil
}

// newDeploymentAt uses a database of the test's own: the owner's URL, and the superuser's.
func newDeploymentAt(t testing.TB, database, admin string) *deployment {
	t.Helper()
	w := &deployment{
		t: t, seed: tier.Seed(t), db: database, prefix: kafkatest.TopicPrefix(t), pipe: "kafka",
		operator: "mp_op_" + strings.ReplaceAll(uuid.NewString(), "-", "") + "e2e",
		http:     &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	if *fresh {
		w.pipe = "postgres" // the demo and the tour have Kafka there
	}
	w.sql = superuser(t, admin)
	t.Cleanup(w.http.CloseIdleConnections)
	t.Cleanup(func() { dropTopics(w) })
	return w
}

// dropTopics deletes the deployment's topics from the shared broker: the partitions of dozens of deployments
// would be more than it can bear. All users of the topics have ended by then.
func dropTopics(w *deployment) {
	if w.cluster != nil || w.pipe != "kafka" || len(w.instances) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := w.kafka()
	defer c.Close()
	if _, err := kadm.NewClient(c).DeleteTopics(ctx, append(topicNames(w), w.prefix+usageCommands)...); err != nil {
		w.t.Logf("its topics stay on the broker: %v", err)
	}
}

// superuser connects as the superuser, which row level security does not restrict.
func superuser(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	must.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// prepare makes an instance without starting it; roles "" means all.
func (w *deployment) prepare(roles string, env ...string) *instance {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	i := &instance{t: w.t, name: "instance " + strconv.Itoa(len(w.instances)+1), args: []string{"serve"}}
	i.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.t.TempDir(), "DATABASE_URL=" + w.db, "METERPLEX_PIPE=" + w.pipe,
		"METERPLEX_TOPIC_PREFIX=" + w.prefix, "METERPLEX_HTTP_ADDR=127.0.0.1:0",
		"METERPLEX_BOOTSTRAP_OPERATOR_KEY=" + w.operator, "METERPLEX_DATA_DIR=" + w.t.TempDir(),
	}
	if w.pipe == "kafka" {
		i.env = append(i.env, "KAFKA_BROKERS="+strings.Join(w.brokers().Brokers(), ","))
	}
	if roles != "" {
		i.env = append(i.env, "METERPLEX_ROLES="+roles)
	}
	i.env = append(i.env, env...)
	w.instances = append(w.instances, i)
	w.t.Cleanup(i.cleanup)
	return i
}

// prepareProxied makes an instance whose connections, to servers and from clients, all pass proxies.
func prepareProxied(w *deployment, env ...string) *instance {
	w.t.Helper()
	pipe := newPipeProxies(w.t, w.brokers().Brokers())
	database := newProxy(w.t, func() string { return hostOf(w.db) })
	var brokers []string
	for _, p := range pipe {
		brokers = append(brokers, p.addr())
	}
	i := w.prepare("", append(env, "DATABASE_URL="+atHost(w.db, database.addr()),
		"KAFKA_BROKERS="+strings.Join(brokers, ","), fmt.Sprint("KAFKA_REPLICATION=", len(pipe)))...)
	i.pipe, i.database, i.clients = pipe, database, newProxy(w.t, func() string { return hostOf(i.url()) })
	database.start()
	i.clients.start()
	return i
}

// serve starts an instance.
func (w *deployment) serve(roles string, env ...string) *instance {
	w.t.Helper()
	i := w.prepare(roles, env...)
	i.start()
	return i
}

// call makes one request and reads the answer. It returns err without an answer.
func (w *deployment) call(ctx context.Context, key, method, url string, in any, header ...string) (status int, body []byte, err error) {
	var sent io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return 0, nil, err
		}
		sent = bytes.NewReader(raw)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, sent)
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for n := 0; n+1 < len(header); n += 2 {
		r.Header.Set(header[n], header[n+1])
	}
	answer, err := w.http.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

// callOnceServed is call by a client that follows the contract: it sends a request again that the
// service refused as overloaded, which was not begun, and a read that found the database gone.
func callOnceServed(w *deployment, ctx context.Context, key, method, url string, in any, header ...string) (status int, body []byte,
	err error) {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		status, body, err = w.call(ctx, key, method, url, in, header...)
		again := err == nil && status == http.StatusServiceUnavailable && time.Now().Before(end) &&
			(method == http.MethodGet || bytes.Contains(body, []byte(`"code":"overloaded"`)))
		if !again {
			return status, body, err
		}
	}
}

// get reads an answer with status 200 into out.
func (w *deployment) get(ctx context.Context, key string, at *instance, path string, out any) error {
	status, body, err := callOnceServed(w, ctx, key, http.MethodGet, at.url()+path, nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("GET %s: %d %s", path, status, body)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, out)
}

// ask makes a request, checks the status of the answer, and reads the answer into out.
func (w *deployment) ask(key, method string, at *instance, path string, in, out any, want int, header ...string) {
	w.t.Helper()
	status, body, err := callOnceServed(w, w.t.Context(), key, method, at.url()+path, in, header...)
	if err != nil || status != want {
		w.t.Fatalf("%s %s: %d %v, want %d: %s", method, path, status, err, want, body)
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal(body, out); err != nil {
		w.t.Fatalf("%s %s: %v: %s", method, path, err, body)
	}
}

// count reads a number as the superuser.
func (w *deployment) count(sql string, args ...any) (n int) {
	w.t.Helper()
	must.OK(w.t, w.sql.QueryRow(w.t.Context(), sql, args...).Scan(&n))
	return n
}
