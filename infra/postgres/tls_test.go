package postgres

import (
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// writeFile lets the server write a file of its data directory, which only its own account may read.
func (l *loginTrial) writeFile(name, content string) {
	l.Helper()
	l.exec(fmt.Sprintf(`COPY (SELECT unnest(string_to_array('%s', E'\n'))) TO PROGRAM 'umask 077 && cat > %s'`, content, name))
}

// overTLS migrates and works as a login without CREATEROLE on a server that accepts remote logins by TLS and SCRAM only. A connection that
// the client or the server refuses ends with an error that names the cause, and no password.
func overTLS(l *loginTrial) {
	const password = "canary-p"
	l.create("$W", `CREATE ROLE meterplex_worker NOLOGIN; CREATE ROLE meterplex_tenant NOLOGIN`,
		`SET password_encryption = 'scram-sha-256'`,
		`CREATE ROLE $W LOGIN PASSWORD '`+password+`'`, `GRANT meterplex_worker, meterplex_tenant TO $W`)
	ca, other := localtest.NewCA(l, "the authority"), localtest.NewCA(l, "another authority")
	own := ca.Sign(l, "server", time.Hour, "127.0.0.1")
	l.writeFile("server.crt", own.Cert)
	l.writeFile("server.key", own.Key)
	l.writeFile("pg_hba.conf", "local all all scram-sha-256\nhostnossl all postgres 127.0.0.1/32 scram-sha-256\nhostssl all all "+
		"127.0.0.1/32 scram-sha-256\n")
	for _, statement := range []string{`ALTER SYSTEM SET ssl_min_protocol_version = 'TLSv1.2'`, `ALTER SYSTEM SET ssl = on`,
		`SELECT pg_reload_conf()`} {
		l.exec(statement)
	}
	address := func(password, mode string, by *localtest.CA, host string) string {
		u, err := url.Parse(l.url("$W"))
		must.OK(l, err)
		u.User, u.Host = url.UserPassword(u.User.Username(), password), host+":"+u.Port()
		u.RawQuery = url.Values{"sslmode": {mode}, "sslrootcert": {localtest.File(l, "ca.pem", by.PEM)}}.Encode()
		return u.String()
	}
	good := address(password, "verify-full", ca, "127.0.0.1")
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // the server reads its files with a delay
		conn, err := pgx.Connect(l.Context(), good)
		if err == nil {
			var encrypted bool
			if err := conn.QueryRow(l.Context(), `SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&encrypted); err != nil ||
				!encrypted {
				l.Errorf("encrypted: %v, %v", encrypted, err)
			}
			_ = conn.Close(l.Context())
			break
		}
		if strings.Contains(err.Error(), "not supported by this build") || time.Now().After(end) {
			l.Fatal(err)
		}
	}
	if _, err := MigrateAs(l.Context(), Logins{Migrates: good, Works: good}, slog.Default()); err != nil {
		l.Fatal(err)
	}
	pool, err := Open(l.Context(), Config{URL: good, MaxConns: 2})
	must.OK(l, err)
	defer pool.Close()
	var as string
	if err := pool.QueryRow(l.Context(), `SELECT current_user::text`).Scan(&as); err != nil || as != WorkerRole {
		l.Errorf("works as %s, %v", as, err)
	}
	l.refuse(map[string]refusedURL{
		"a wrong password":     {address("canary-wrong", "verify-full", ca, "127.0.0.1"), []string{"password authentication failed"}},
		"an unknown authority": {address(password, "verify-full", other, "127.0.0.1"), []string{"unknown authority"}},
		"another host name":    {address(password, "verify-full", ca, "localhost"), []string{"localhost", "certificate"}},
		"no TLS":               {address(password, "disable", ca, "127.0.0.1"), []string{"no pg_hba.conf entry", "no encryption"}},
	})
}

// refusedURL is an address that is refused, and the words of the error.
type refusedURL struct {
	url  string
	says []string
}

func (l *loginTrial) refuse(list map[string]refusedURL) {
	l.Helper()
	for name, c := range list {
		_, migrated := MigrateAs(l.Context(), Logins{Migrates: c.url, Works: c.url}, slog.Default())
		opened, worked := Open(l.Context(), Config{URL: c.url, MaxConns: 1})
		if worked == nil {
			opened.Close()
		}
		for _, err := range []error{migrated, worked} {
			text := fmt.Sprint(err)
			if err == nil || slices.ContainsFunc(c.says, func(says string) bool { return !strings.Contains(text, says) }) {
				l.Errorf("%s: the error lacks %q: %v", name, c.says, err)
			}
			if strings.Contains(text, "canary") {
				l.Errorf("%s: the error holds the password: %v", name, err)
			}
		}
	}
}
