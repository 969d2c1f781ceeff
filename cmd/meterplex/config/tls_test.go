package config

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// A file that cannot serve ends the start with an error that names the setting. No error holds a key.
func TestTLSFilesThatCannotServe(t *testing.T) {
	ca := localtest.NewCA(t, "the authority")
	own := ca.Sign(t, "meter", time.Hour)
	cert, key := own.Files(t)
	_, otherKey := ca.Sign(t, "meter", time.Hour).Files(t)
	empty, dir := localtest.File(t, "empty.pem", ""), t.TempDir()
	authority := localtest.File(t, "ca.pem", ca.PEM)
	for name, c := range map[string]struct {
		k    Kafka
		says []string
	}{
		"swapped":               {Kafka{TLSCert: key, TLSKey: cert}, []string{"KAFKA_TLS_CERT and KAFKA_TLS_KEY", "switched"}},
		"a key of another":      {Kafka{TLSCert: cert, TLSKey: otherKey}, []string{"KAFKA_TLS_CERT and KAFKA_TLS_KEY", "does not match"}},
		"an empty certificate":  {Kafka{TLSCert: empty, TLSKey: key}, []string{"KAFKA_TLS_CERT", "certificate"}},
		"an empty key":          {Kafka{TLSCert: cert, TLSKey: empty}, []string{"KAFKA_TLS_KEY", "key"}},
		"a directory":           {Kafka{TLSCert: dir, TLSKey: key}, []string{"KAFKA_TLS_CERT", "directory"}},
		"a key as authority":    {Kafka{TLSCA: key}, []string{"KAFKA_TLS_CA", "no certificate"}},
		"an empty authority":    {Kafka{TLSCA: empty}, []string{"KAFKA_TLS_CA", "no certificate"}},
		"a directory as one":    {Kafka{TLSCA: dir}, []string{"KAFKA_TLS_CA", "directory"}},
		"a file that is absent": {Kafka{TLSCA: dir + "/none"}, []string{"KAFKA_TLS_CA", "no such file"}},
	} {
		c.k.TLS = true
		_, err := c.k.TLSConfig(nil)
		if err == nil {
			t.Errorf("%s is accepted", name)
			continue
		}
		for _, says := range c.says {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: the error lacks %q: %v", name, says, err)
			}
		}
		if strings.Contains(err.Error(), own.Key[40:60]) {
			t.Errorf("%s: the error holds the key", name)
		}
	}
	good := Kafka{TLS: true, TLSCA: authority, TLSCert: cert, TLSKey: key}
	if got, err := good.TLSConfig(nil); err != nil || got.GetClientCertificate == nil {
		t.Errorf("good files: %v, %v", got, err)
	}
	if got := (&Config{Kafka: good}).TLSWarnings(time.Now()); got != nil {
		t.Errorf("good files: %q", got)
	}
}

// A key that every user may read, and a certificate that has expired, are one warning each.
func TestTLSFilesThatAreWarnedOf(t *testing.T) {
	ca := localtest.NewCA(t, "the authority")
	old := ca.Sign(t, "meter", -time.Hour)
	cert, key := old.Files(t)
	both := localtest.File(t, "both.pem", old.Key+old.Key+ca.PEM)
	for _, path := range []string{key, both} {
		must.OK(t, os.Chmod(path, 0o644))
	}
	c := Config{HTTPTLSCert: localtest.File(t, "cert.pem", ca.PEM), Kafka: Kafka{TLS: true, TLSCA: both, TLSCert: cert, TLSKey: key}}
	got := c.TLSWarnings(time.Now())
	for _, want := range []string{"KAFKA_TLS_CA: every user", "KAFKA_TLS_CERT: a certificate in " + cert + " expired at ",
		"KAFKA_TLS_KEY: every user of this machine may use the private key in " + key + " (mode 0644)"} {
		if text := strings.Join(got, "\n"); strings.Count(text, want) != 1 || strings.Contains(text, old.Key[40:60]) {
			t.Errorf("%q is not there once: %s", want, text)
		}
	}
	if len(got) != 3 {
		t.Errorf("%d warnings: %q", len(got), got)
	}
}

// The certificate of a broker is compared with KAFKA_TLS_CA and with the host, or with KAFKA_TLS_SERVER_NAME.
func TestBrokersAreVerified(t *testing.T) {
	ca, other := localtest.NewCA(t, "the authority"), localtest.NewCA(t, "another authority")
	file := localtest.File(t, "ca.pem", ca.PEM)
	for name, c := range map[string]struct {
		broker     localtest.Certificate
		serverName string
		refused    string
	}{
		"the host":               {ca.Sign(t, "broker", time.Hour, "127.0.0.1"), "", ""},
		"another host":           {ca.Sign(t, "broker", time.Hour, "kafka.example"), "", "127.0.0.1"},
		"the server name":        {ca.Sign(t, "broker", time.Hour, "kafka.example"), "kafka.example", ""},
		"not the server name":    {ca.Sign(t, "broker", time.Hour, "127.0.0.1"), "kafka.example", "kafka.example"},
		"another authority":      {other.Sign(t, "broker", time.Hour, "127.0.0.1"), "", "unknown authority"},
		"an expired certificate": {ca.Sign(t, "broker", -time.Minute, "127.0.0.1"), "", "expired"},
	} {
		pair, err := tls.X509KeyPair([]byte(c.broker.Cert), []byte(c.broker.Key))
		must.OK(t, err)
		cfg, err := Kafka{TLS: true, TLSCA: file, TLSServerName: c.serverName}.TLSConfig(nil)
		must.OK(t, err)
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
		must.OK(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if conn, err := l.Accept(); err == nil {
				_ = conn.(*tls.Conn).HandshakeContext(t.Context()) // the client may refuse
				_ = conn.Close()
			}
		}()
		conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", l.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		if accepted := err == nil; accepted != (c.refused == "") || !accepted && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, and %q is expected", name, err, c.refused)
		}
		_ = l.Close()
		<-done
	}
}

// TestReplacedAuthoritiesAreReadAgain: the next connection trusts those of the changed file, and a file without any changes nothing.
func TestReplacedAuthoritiesAreReadAgain(t *testing.T) {
	first, second := localtest.NewCA(t, "the authority"), localtest.NewCA(t, "another authority")
	file := localtest.File(t, "ca.pem", first.PEM)
	var log bytes.Buffer
	current, err := Kafka{TLS: true, TLSCA: file}.Authorities(slog.New(slog.NewTextHandler(&log, nil)))
	must.OK(t, err)
	for minute, step := range []struct {
		text string
		want *localtest.CA
	}{{first.PEM, first}, {second.PEM, second}, {"", second}, {first.PEM + second.PEM, nil}} {
		must.OK(t, os.WriteFile(file, []byte(step.text), 0o600))
		must.OK(t, os.Chtimes(file, time.Time{}, time.Unix(int64(minute)*60, 0)))
		got, want := current(), x509.NewCertPool()
		if step.want == nil {
			step.want = first
			want.AppendCertsFromPEM([]byte(second.PEM))
		}
		want.AppendCertsFromPEM([]byte(step.want.PEM))
		if !got.Equal(want) {
			t.Errorf("minute %d: other authorities are trusted", minute)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want 1: %s", n, log.String())
	}
	if none, err := (Kafka{TLS: true}).Authorities(nil); err != nil || none != nil {
		t.Errorf("without a file: %v", err)
	}
}

// TestReplacedTLSFilesAreReadAgain: the next connection has the new certificate. Files that do not fit leave the one from before in use,
// with one warning, and are read again after a second, as after a change of permissions, which leaves their times.
func TestReplacedTLSFilesAreReadAgain(t *testing.T) {
	ca := localtest.NewCA(t, "the authority")
	first, second, third := ca.Sign(t, "meter", time.Hour), ca.Sign(t, "meter", time.Hour), ca.Sign(t, "meter", time.Hour)
	cert, key := first.Files(t)
	var log bytes.Buffer
	pair, err := ReadKeyPair(cert, key, slog.New(slog.NewTextHandler(&log, nil)))
	must.OK(t, err)
	client, err := Kafka{TLS: true, TLSCert: cert, TLSKey: key}.TLSConfig(nil)
	must.OK(t, err)
	now := time.Now()
	pair.now = func() time.Time { return now }
	for n, step := range []struct {
		file, text, want string
		minute           int // of the file's time
		later            time.Duration
		warnings         int
	}{
		{key, first.Key, first.Cert, 1, 0, 0}, {cert, second.Cert, first.Cert, 2, 0, 1}, {key, second.Key, second.Cert, 3, 0, 1},
		{cert, "", second.Cert, 4, 0, 2}, {cert, "", second.Cert, 4, retryAfter, 2}, {cert, third.Cert, second.Cert, 4, retryAfter, 2},
		{key, third.Key, second.Cert, 3, retryAfter - 1, 2}, {key, third.Key, third.Cert, 3, 1, 2},
	} {
		must.OK(t, os.WriteFile(step.file, []byte(step.text), 0o600))
		must.OK(t, os.Chtimes(step.file, time.Time{}, time.Unix(int64(step.minute)*60, 0)))
		now = now.Add(step.later)
		if got := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Current().Certificate[0]})); got != step.want {
			t.Errorf("step %d: another certificate is in use", n)
		}
		if got := strings.Count(log.String(), "level=WARN"); got != step.warnings {
			t.Errorf("step %d: %d warnings, want %d: %s", n, got, step.warnings, log.String())
		}
	}
	if got, err := client.GetClientCertificate(nil); err != nil || !slices.Equal(got.Certificate[0], pair.Current().Certificate[0]) {
		t.Errorf("the client of Kafka has another certificate: %v", err)
	}
}
