package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/tracing"
)

// databaseLogin checks that the login can work as the service's roles.
func databaseLogin(ctx context.Context, s *subject) (State, string, error) {
	if s.noLogin != nil {
		return Failure, s.noLogin.Error(), nil
	}
	for _, role := range []string{postgres.WorkerRole, postgres.TenantRole} {
		conn, err := session(ctx, s.DatabaseURL, role)
		if err != nil {
			return Failure, fmt.Sprintf("the login cannot set the role %s: %v", role, err), nil
		}
		var as string
		if err = conn.QueryRow(ctx, `SELECT current_user`).Scan(&as); err == nil {
			err = conn.Close(ctx)
		}
		if err != nil {
			return "", "", err
		}
		if as != role {
			return Failure, fmt.Sprintf("a session runs as %s instead of %s: a connection pooler dropped the role", as, role), nil
		}
	}
	return OK, "the login may set both roles of the service", nil
}

// dangerChecks makes a check of each danger that the service refuses or warns of at its start.
func dangerChecks() (list []check) {
	for _, d := range postgres.Dangers() {
		list = append(list, check{"access", "unsafe_" + d.Name, needsDatabase, "docs/reference/unsafe-settings.md, the line of " + d.Name,
			func(_ context.Context, s *subject) (State, string, error) {
				return s.danger(d)
			}})
	}
	return list
}

func (s *subject) danger(d postgres.Danger) (State, string, error) {
	if err := errors.Join(s.noLogin, s.dangerErr); err != nil {
		return "", "", err
	}
	var found []string
	for _, f := range s.dangers {
		if f.Name == d.Name {
			found = append(found, f.Found)
		}
	}
	switch {
	case len(found) == 0:
		return OK, "not found", nil
	case slices.Contains(s.AllowUnsafe, d.Name):
		return Warning, strings.Join(found, "; ") + ", which METERPLEX_ALLOW_UNSAFE allows: " + d.Why, nil
	}
	state := Failure
	if d.Warns {
		state = Warning
	}
	return state, strings.Join(found, "; ") + ": " + d.Why, nil
}

func databaseTLS(ctx context.Context, s *subject) (State, string, error) {
	db, err := s.server()
	if err != nil {
		return "", "", err
	}
	var encrypted, local bool
	var version string
	if err := db.QueryRow(ctx, `SELECT ssl, coalesce(version, ''), coalesce(inet_server_addr() <<= '127.0.0.0/8'
		OR inet_server_addr() = '::1', true)
 FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&encrypted, &version, &local); err != nil {
		return "", "", err
	}
	return tlsState(encrypted, local, version, db.Config().TLSConfig)
}

func tlsState(encrypted, local bool, version string, cfg *tls.Config) (State, string, error) {
	switch {
	case local:
		return OK, "the server is on this machine", nil
	case !encrypted:
		return Warning, "the connection is not encrypted, and its server is on another machine", nil
	case cfg == nil || cfg.InsecureSkipVerify && cfg.VerifyPeerCertificate == nil:
		return Warning, "the connection is encrypted, but the server's certificate is not verified", nil
	case cfg.InsecureSkipVerify:
		return Warning, "the server's certificate is verified, but not its host name (sslmode=verify-ca)", nil
	}
	return OK, version + ", and the certificate is verified", nil
}

func kafkaLogin(ctx context.Context, s *subject) (State, string, error) {
	if err := s.admin.Ping(ctx); err != nil {
		return Failure, err.Error(), nil
	}
	if _, err := s.admin.Topics(ctx); err != nil {
		return Failure, err.Error(), nil
	}
	return OK, "a broker answers, and the login may describe the topics", nil
}

func kafkaTLS(_ context.Context, s *subject) (State, string, error) {
	if s.Kafka.TLS != nil {
		return OK, "TLS is on", nil
	}
	for _, broker := range s.Kafka.Brokers {
		host, _, err := net.SplitHostPort(broker)
		if err != nil {
			return "", "", err
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return Warning, "connections to " + broker + " are not encrypted", nil
		}
	}
	return OK, "the brokers are on this machine", nil
}

// certificates reads the certificates of the settings: the one that ends first decides.
func certificates(_ context.Context, s *subject) (State, string, error) {
	if len(s.Certificates) == 0 {
		return Skipped, "no certificate is set", nil
	}
	state, found := OK, []string{}
	for name, file := range s.Certificates {
		ends, err := firstExpiry(file)
		if err != nil {
			return Failure, fmt.Sprintf("%s: %v", name, err), nil
		}
		switch left := ends.Sub(s.Now()); {
		case left <= 0:
			state = Failure
			found = append(found, fmt.Sprintf("%s expired at %s", name, ends.UTC().Format(time.RFC3339)))
		case left < expiryWarning:
			if state == OK {
				state = Warning
			}
			found = append(found, fmt.Sprintf("%s expires at %s", name, ends.UTC().Format(time.RFC3339)))
		}
	}
	if len(found) == 0 {
		return OK, fmt.Sprintf("%d files, valid for 14 days or more", len(s.Certificates)), nil
	}
	slices.Sort(found)
	return state, strings.Join(found, "; "), nil
}

// firstExpiry returns the end of the certificate in a PEM file that ends first.
func firstExpiry(file string) (first time.Time, err error) {
	rest, err := os.ReadFile(file)
	if err != nil {
		return first, err
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return first, err
		}
		if first.IsZero() || c.NotAfter.Before(first) {
			first = c.NotAfter
		}
	}
	if first.IsZero() {
		return first, errors.New("the file holds no certificate in PEM form")
	}
	return first, nil
}

func keyFiles(_ context.Context, s *subject) (State, string, error) {
	if len(s.Keys) == 0 {
		return Skipped, "no private key is set", nil
	}
	var found []string
	for name, file := range s.Keys {
		info, err := os.Stat(file)
		if err != nil {
			return Failure, fmt.Sprintf("%s: %v", name, err), nil
		}
		if info.IsDir() || info.Size() == 0 {
			return Failure, name + " is a directory, or empty", nil
		}
		if info.Mode().Perm()&0o007 != 0 {
			found = append(found, fmt.Sprintf("%s has the mode %#o", name, info.Mode().Perm()))
		}
	}
	if len(found) == 0 {
		return OK, "no other user may read them", nil
	}
	slices.Sort(found)
	return Warning, strings.Join(found, "; "), nil
}

func apiKeys(ctx context.Context, s *subject) (State, string, error) {
	n, names, err := count(ctx, s, `SELECT prefix || ' (' || name || ')' FROM api_keys WHERE revoked_at IS NULL AND expires_at > now()
		AND expires_at < now() + make_interval(secs => $1)`, expiryWarning.Seconds())
	if err != nil || n == 0 {
		return OK, "no key expires within 14 days", err
	}
	return Warning, fmt.Sprintf("%d keys expire within 14 days: %s", n, names), nil
}

// traces checks the variables of the exporter, with which an instance would not start, and sends the collector an export without spans.
func traces(ctx context.Context, s *subject) (State, string, error) {
	if s.TraceRatio == 0 {
		return Skipped, "METERPLEX_TRACE_RATIO is 0: traces are off", nil
	}
	endpoint, err := tracing.CheckCollector(ctx)
	switch {
	case errors.Is(err, tracing.ErrEnvironment):
		return Failure, err.Error() + "; instances do not start", nil
	case err != nil:
		return Warning, fmt.Sprintf("the collector at %s accepts no spans, so they are dropped: %v", endpoint, err), nil
	}
	return OK, "the collector at " + endpoint + " accepts spans", nil
}
