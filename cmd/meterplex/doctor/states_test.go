package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/state"
)

func itoa(n uint16) string { return strconv.Itoa(int(n)) }

// The states that a test server cannot be brought into.
func TestStatesByTheirBounds(t *testing.T) {
	state := func(s State, _ string, err error) State {
		if err != nil {
			t.Error(err)
		}
		return s
	}
	verified, unverified := &tls.Config{}, &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the state that is found
	ca := &tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { return nil }}
	for _, c := range []struct {
		check     string
		got, want State
	}{
		{"long_transactions", statusOf(transactionWarning, transactionWarning, transactionFailure), OK},
		{"long_transactions", statusOf(transactionWarning+1, transactionWarning, transactionFailure), Warning},
		{"long_transactions", statusOf(transactionFailure+1, transactionWarning, transactionFailure), Failure},
		{"freeze", frozen(frozenAge), OK},
		{"freeze", frozen(frozenAge + 1), Warning},
		{"freeze", frozen(frozenAge/2*3 + 1), Failure},
		{"server_version", supported(149999), Failure},
		{"server_version", supported(150000), OK},
		{"server_version", supported(189999), OK},
		{"server_version", supported(190000), Warning},
		{"checksums", state(checksumState(true)), OK},
		{"checksums", state(checksumState(false)), Warning},
		{"collation", state(collationState("153.80", "153.80")), OK},
		{"collation", state(collationState("153.80", "153.120")), Failure},
		{"collation", state(collationState("153.80", "")), Failure},
		{"collation", state(collationState("", "153.80")), Warning},
		{"collation", state(collationState("", "")), OK},
		{"retained_wal", state(walState(800, 1000, 0)), OK},
		{"retained_wal", state(walState(801, 1000, 0)), Warning},
		{"retained_wal", state(walState(1001, 1000, 0)), Failure},
		{"retained_wal", state(walState(slotWAL, -1, 0)), Warning},
		{"retained_wal", state(walState(slotWAL+1, -1, 0)), Failure},
		{"retained_wal", state(walState(slotWAL+1, 0, 0)), OK},
		{"retained_wal", state(walState(1, 0, 1)), Warning},
		{"in_sync_replicas", state(replicaState([]kafka.TopicState{{Name: "a", Replicas: 3, InSync: 3}})), OK},
		{"in_sync_replicas", state(replicaState([]kafka.TopicState{{Name: "a", Replicas: 3, InSync: 2}})), Failure},
		{"database_tls", state(tlsState(false, true, "", nil)), OK},
		{"database_tls", state(tlsState(false, false, "", nil)), Warning},
		{"database_tls", state(tlsState(true, false, "", unverified)), Warning},
		{"database_tls", state(tlsState(true, false, "", ca)), Warning},
		{"database_tls", state(tlsState(true, false, "", verified)), OK},
	} {
		if c.got != c.want {
			t.Errorf("%s is %s, want %s", c.check, c.got, c.want)
		}
	}
	for _, d := range postgres.Dangers() {
		s := &subject{dangers: []postgres.Danger{{Name: d.Name, Found: "found"}, {Name: "other", Found: "another"}}}
		if got := state(s.danger(d)); got != map[bool]State{false: Failure, true: Warning}[d.Warns] {
			t.Errorf("%s is %s", d.Name, got)
		}
		if s.AllowUnsafe = []string{d.Name}; state(s.danger(d)) != Warning {
			t.Errorf("%s is no warning if it is allowed", d.Name)
		}
		if s.dangers = s.dangers[1:]; state(s.danger(d)) != OK {
			t.Errorf("%s is found without cause", d.Name)
		}
		if s.dangerErr = errors.New("no"); s.dangerErr != nil {
			if _, _, err := s.danger(d); err == nil {
				t.Errorf("%s is judged without a look", d.Name)
			}
		}
	}
}

func certificate(t *testing.T, ends time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	form := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: ends.Add(-time.Hour), NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	must.OK(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestCertificatesAndKeyFiles(t *testing.T) {
	p := &patient{T: t, cfg: Config{Now: time.Now}}
	file := filepath.Join(t.TempDir(), "file.pem")
	write := func(content []byte, mode os.FileMode) {
		must.OK(t, errors.Join(os.WriteFile(file, content, 0o600), os.Chmod(file, mode)))
	}
	if f := p.examine("certificates"); f.State != Skipped {
		t.Errorf("%+v", f)
	}
	later, soon, past := certificate(t, time.Now().Add(15*24*time.Hour)), certificate(t, time.Now().Add(3*24*time.Hour)),
		certificate(t, time.Now().Add(-time.Hour))
	p.cfg.Certificates, p.cfg.Keys = map[string]string{"KAFKA_TLS_CA": file}, map[string]string{"KAFKA_TLS_KEY": file}
	write(later, 0o600)
	p.finds("certificates", OK, "")
	write(append(later, soon...), 0o600)
	p.finds("certificates", Warning, "KAFKA_TLS_CA expires at")
	write(append(later, past...), 0o600)
	p.finds("certificates", Failure, "KAFKA_TLS_CA expired at")
	for _, content := range []string{"", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		write([]byte(content), 0o600)
		p.finds("certificates", Failure, "KAFKA_TLS_CA")
	}
	write(later, 0o640)
	p.finds("key_files", OK, "")
	write(later, 0o644)
	p.finds("key_files", Warning, "0644")
	write(nil, 0o600)
	p.finds("key_files", Failure, "empty")
	p.cfg.Keys["KAFKA_TLS_KEY"] = filepath.Dir(file)
	p.finds("key_files", Failure, "directory")
	p.cfg.Keys["KAFKA_TLS_KEY"] = file + ".missing"
	p.finds("key_files", Failure, "no such file")
}

func TestTheCollectorOfTracesIsChecked(t *testing.T) {
	p := &patient{T: t, cfg: Config{Now: time.Now}}
	if f := p.examine("traces"); f.State != Skipped {
		t.Errorf("%+v", f)
	}
	status := http.StatusOK
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/v1/traces" || len(body) != 0 {
			t.Errorf("%s %s with %d bytes", r.Method, r.URL, len(body))
		}
		w.WriteHeader(status)
		if status != http.StatusOK {
			_, _ = io.WriteString(w, "no right for "+r.Header.Get("api-key"))
		}
	}))
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=the%20canary")
	p.cfg.TraceRatio = 0.01
	p.finds("traces", OK, collector.URL)
	status = http.StatusUnauthorized
	p.finds("traces", Warning, "401")
	if f := p.examine("traces"); strings.Contains(f.Finding, "canary") {
		t.Errorf("the finding holds the key: %s", f.Finding)
	}
	collector.Close()
	p.finds("traces", Warning, "accepts no spans")
	file := filepath.Join(t.TempDir(), "file.pem")
	must.OK(t, os.WriteFile(file, certificate(t, time.Now().Add(time.Hour)), 0o600))
	for _, c := range []struct{ name, value, finding string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "must be http://host:port"},
		{"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", file + ".missing", "no such file"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", filepath.Dir(file), "directory"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", os.DevNull, "no certificate in PEM form"},
		{"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", file, "set both"},
		{"OTEL_EXPORTER_OTLP_CLIENT_KEY", file, "CLIENT_KEY"},
	} {
		t.Setenv(c.name, c.value)
		p.finds("traces", Failure, c.finding)
		if c.name != "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE" { // its key follows
			t.Setenv(c.name, map[bool]string{true: "http://127.0.0.1:1"}[c.name == "OTEL_EXPORTER_OTLP_ENDPOINT"])
		}
	}
}

func TestFaultsOfKafkaAreFound(t *testing.T) {
	tier.AtSize(t)
	p := newPatient(t)
	broker := kafkatest.Broker(t)
	p.cfg.Kafka = &kafka.Config{Brokers: broker.Brokers(), TopicPrefix: kafkatest.TopicPrefix(t)}
	p.finds("kafka_login", OK, "")
	p.finds("kafka_tls", OK, "")
	p.finds("topics", Failure, "missing: ")
	admin, err := kafka.NewAdmin(*p.cfg.Kafka)
	if err == nil {
		err = admin.Ensure(t.Context())
		admin.Close()
	}
	must.OK(t, err)
	for _, name := range []string{"topics", "in_sync_replicas", "durability", "retention", "broker_clock"} {
		p.finds(name, OK, "")
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Brokers()...))
	must.OK(t, err)
	defer client.Close()
	raw := p.cfg.Kafka.TopicPrefix + events.TopicUsageRaw.Name()
	alter := func(name, value string) {
		if _, err := kadm.NewClient(client).AlterTopicConfigs(t.Context(),
			[]kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, raw); err != nil {
			t.Fatal(err)
		}
	}
	alter("unclean.leader.election.enable", "true")
	p.finds("durability", Warning, raw+": unclean.leader.election.enable")

	must.OK(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: raw, Value: []byte("{}")}).FirstErr())
	p.finds("broker_clock", OK, "from the future")
	p.cfg.Now = func() time.Time { return time.Now().Add(-2 * time.Minute) }
	p.finds("broker_clock", Failure, "ahead of this machine's clock")
	p.cfg.Now = time.Now

	p.exec(`UPDATE log_heads SET position = 1, topic_positions[1] = 1 WHERE partition = 3`)
	p.exec(`INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, epoch, origin,
		partition, topic, subject, dedupe_key, body)
 VALUES (1, 0, now() - interval '2 hours', now(), gen_random_uuid(), gen_random_uuid(), 1, 1, 3, 1, 1, 'u/1', '{}')`)
	p.finds("retention", OK, "")
	alter("retention.ms", "10800000")
	p.finds("retention", Warning, "meterplex-usage-validator")
	alter("retention.ms", "3600000")
	p.finds("retention", Failure, "the brokers delete it after 1h")

	p.cfg.Kafka.TopicPrefix = kafkatest.TopicPrefix(t)
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 3, 1, nil,
		p.cfg.Kafka.TopicPrefix+events.TopicUsageRaw.Name()); err != nil {
		t.Fatal(err)
	}
	p.finds("topics", Failure, "has 3 partitions")

	p.cfg.Kafka.Brokers = []string{"192.0.2.1:9092"}
	s := &subject{Config: p.cfg}
	if state, _, err := kafkaTLS(context.Background(), s); state != Warning || err != nil {
		t.Errorf("brokers elsewhere without TLS: %s %v", state, err)
	}
	p.cfg.Kafka.Brokers = []string{"127.0.0.1:1"}
	p.finds("kafka_login", Failure, "127.0.0.1:1")
	p.cfg.NoKafka = errors.New("KAFKA_TLS_CA holds no certificate in PEM form")
	p.finds("kafka_login", Unknown, "KAFKA_TLS_CA")
}

// The checks of lags find the first waiting event of a rare topic without reading those of other topics.
func TestLagOfARareTopicIsReadAlongItsChain(t *testing.T) {
	tier.AtSize(t)
	p := newPatient(t)
	reads := new(state.Lags).Statement()
	localtest.RareEventWaits(t, p.super, reads.SQL, reads.Args...)
	p.finds("projection_lag", Failure, events.GroupDeadLetter+" lags by 20001 events and 1m")
}
