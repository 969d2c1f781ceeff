package kafka_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// password is the user's; no text holds it.
const password = "canary-s3cret"

// setPassword replaces the SCRAM password of the user, for both mechanisms.
func (b *securedBroker) setPassword(to string) {
	b.Helper()
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} { // a request changes one of a user
		changed, err := b.admin.AlterUserSCRAMs(b.Context(), nil,
			[]kadm.UpsertSCRAM{{User: "meter", Mechanism: mechanism, Iterations: 4096, Password: to}})
		if err == nil {
			err = changed.Error()
		}
		must.OK(b, err)
	}
}

// trusting returns the settings of a client that trusts one authority, and has the given certificates.
func (b *securedBroker) trusting(ca *localtest.CA, own ...localtest.Certificate) *tls.Config {
	b.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	c.RootCAs.AppendCertsFromPEM([]byte(ca.PEM))
	for _, one := range own {
		pair, err := tls.X509KeyPair([]byte(one.Cert), []byte(one.Key))
		must.OK(b, err)
		c.Certificates = append(c.Certificates, pair)
	}
	return c
}

// everything returns all ACLs of docs/how-to/kafka-access.md.
func everything() []acl {
	return []acl{{false, kadm.OpDescribe}, {false, kadm.OpRead}, {false, kadm.OpWrite}, {false, kadm.OpDescribeConfigs},
		{true, kadm.OpRead}}
}

// uses are requests by franz-go and by sarama.
func uses() []string {
	return []string{"topics", "publish", "publish low rate", "read", "read low rate"}
}

// Both clients publish and read with a password of each mechanism, and with a certificate instead of a password.
func bothClientsWorkWithEachLogin(t *testing.T, b *securedBroker) {
	certified := b.cfg
	certified.Brokers, certified.SASL = b.broker.CertifiedBrokers(), kafka.SASL{}
	certified.TLS = b.trusting(b.ca, b.ca.Sign(t, "meter", time.Hour))
	logins := map[string]kafka.Config{"a certificate": certified}
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		cfg := b.cfg
		cfg.SASL.Mechanism = mechanism
		logins[mechanism] = cfg
	}
	changed := b.cfg // KAFKA_TLS_CA had another authority when the clients were configured
	changed.TLS = b.trusting(localtest.NewCA(t, "another authority"))
	changed.Authorities = func() *x509.CertPool { return b.cfg.TLS.RootCAs }
	logins["another authority"] = changed
	for name, cfg := range logins {
		own := *b
		own.cfg = cfg
		for _, use := range uses() {
			if err := own.use(use); err != nil {
				t.Errorf("%s with %s: %v", use, name, err)
			}
		}
	}
	b.searchPassword("the log", b.log.String())
}

func (b *securedBroker) searchPassword(place, text string) {
	b.Helper()
	if strings.Contains(text, "canary") {
		b.Errorf("%s holds the password: %s", place, text)
	}
}

// impostor answers at an address with a certificate, and closes each connection behind the handshake.
func impostor(t *testing.T, own localtest.Certificate) (address string) {
	t.Helper()
	pair, err := tls.X509KeyPair([]byte(own.Cert), []byte(own.Key))
	must.OK(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	must.OK(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(context.Background()) // the client refuses
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// A connection that is refused, by the broker or by the client, ends with an error that names the settings to look at. The reason for
// others names no host.
func theErrorNamesTheSetting(t *testing.T, b *securedBroker) {
	other := localtest.NewCA(t, "another authority")
	for _, c := range []struct {
		name, names, reason string
		byAll               bool // by each request of both clients, else by the first one only: each of them takes a second
		change              func(*kafka.Config)
	}{
		{"wrong password", "KAFKA_SASL_USERNAME or KAFKA_SASL_PASSWORD", "authentication failed", true, func(c *kafka.Config) {
			c.SASL.Password = "canary-wrong"
		}},
		{"wrong password, SHA-256", "KAFKA_SASL_PASSWORD", "authentication failed", false, func(c *kafka.Config) {
			c.SASL.Mechanism, c.SASL.Password = "SCRAM-SHA-256", "canary-wrong"
		}},
		{"wrong password, PLAIN", "KAFKA_SASL_PASSWORD", "authentication failed", false, func(c *kafka.Config) {
			c.SASL.Mechanism, c.SASL.Password = "PLAIN", "canary-wrong"
		}},
		{"unknown user", "KAFKA_SASL_USERNAME", "authentication failed", false, func(c *kafka.Config) { c.SASL.Username = "nobody" }},
		{"no password", "KAFKA_SASL_MECHANISM", "the broker ends each connection", false, func(c *kafka.Config) { c.SASL = kafka.SASL{} }},
		{"unknown authority", "KAFKA_TLS_CA", "the broker's certificate is not trusted", true, func(c *kafka.Config) {
			c.TLS = b.trusting(other)
		}},
		{"other host name", "KAFKA_TLS_SERVER_NAME", "the broker's certificate is for another host", false, func(c *kafka.Config) {
			c.TLS.ServerName = "kafka.example"
		}},
		{"certificate for another host", "KAFKA_TLS_SERVER_NAME", "the broker's certificate is for another host", true,
			func(c *kafka.Config) {
				c.Brokers = []string{impostor(t, b.ca.Sign(t, "broker", time.Hour, "kafka.example", "10.1.2.3"))}
			}},
		{"expired certificate", "expired", "the broker's certificate has expired or is not valid yet", false, func(c *kafka.Config) {
			c.Brokers = []string{impostor(t, b.ca.Sign(t, "broker", -time.Minute, "127.0.0.1"))}
		}},
		{"no certificate", "KAFKA_TLS_CERT", "the client's certificate was refused", true, func(c *kafka.Config) {
			c.Brokers, c.SASL = b.broker.CertifiedBrokers(), kafka.SASL{}
		}},
		{"certificate of another authority", "KAFKA_TLS_CERT", "the client's certificate was refused", false, func(c *kafka.Config) {
			c.Brokers, c.SASL, c.TLS = b.broker.CertifiedBrokers(), kafka.SASL{}, b.trusting(b.ca, other.Sign(t, "meter", time.Hour))
		}},
		{"expired certificate of the client", "KAFKA_TLS_CERT", "the client's certificate was refused", false, func(c *kafka.Config) {
			c.Brokers, c.SASL, c.TLS = b.broker.CertifiedBrokers(), kafka.SASL{}, b.trusting(b.ca, b.ca.Sign(t, "meter", -time.Minute))
		}},
		{"TLS to a port without", "KAFKA_TLS_ENABLED", "the broker ends each connection", false, func(c *kafka.Config) {
			c.Brokers = b.broker.Brokers()
		}},
		{"no TLS", "KAFKA_TLS_ENABLED", "the broker does not answer as Kafka does", false, func(c *kafka.Config) { c.TLS = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := *b
			own.T, own.log = t, &lockedBuffer{}
			own.cfg.TLS, own.cfg.Logger, own.cfg.DeliveryTimeout = b.cfg.TLS.Clone(), own.logger(), 2*time.Second
			c.change(&own.cfg)
			admin, err := kafka.NewAdmin(own.cfg)
			must.OK(t, err)
			defer admin.Close()
			err = admin.Ping(t.Context())
			var reasoned interface{ Reason() string }
			if !errors.As(err, &reasoned) || reasoned.Reason() != c.reason {
				t.Errorf("the reason is not %q: %v", c.reason, err)
			}
			own.refused("ping", c.names, err)
			for _, use := range uses() {
				if !c.byAll {
					break
				}
				own.log.Reset() // the clients of the use before have ended
				if own.cfg.DeliveryTimeout = 2 * time.Second; use == "publish low rate" {
					own.cfg.DeliveryTimeout = time.Minute // sarama gives up before
				}
				own.refused(use, c.names, own.use(use))
			}
			own.searchPassword("the log", own.log.String())
		})
	}
}

func (b *securedBroker) refused(use, names string, err error) {
	b.Helper()
	if text := fmt.Sprint(err) + b.log.String(); err == nil || !strings.Contains(text, names) {
		b.Errorf("%s does not name %s: %v\n%s", use, names, err, b.log.String())
	}
	b.searchPassword("the error", fmt.Sprint(err))
}
