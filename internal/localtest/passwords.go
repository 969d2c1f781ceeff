package localtest

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
)

// quickLogins stores the passwords of a server with one iteration of their hash, not 4096: each connection computes the hash
// again, which was 3 % of the work of the tests that connect often.
func quickLogins(t testing.TB, server *Server) {
	t.Helper()
	for _, address := range []string{server.URL(), server.AdminURL()} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		password, _ := u.User.Password()
		stored, err := storedPassword(password)
		if err != nil {
			t.Fatal(err)
		}
		admin(t, server, `ALTER ROLE `+pgx.Identifier{u.User.Username()}.Sanitize()+` PASSWORD '`+stored+`'`)
	}
}

// storedPassword is a password as PostgreSQL stores it for SCRAM-SHA-256, with one iteration.
func storedPassword(password string) (string, error) {
	salt := make([]byte, 16)
	rand.Read(salt)
	salted, err := pbkdf2.Key(sha256.New, password, salt, 1, sha256.Size)
	if err != nil {
		return "", err
	}
	key := func(name string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(name))
		return h.Sum(nil)
	}
	stored, text := sha256.Sum256(key("Client Key")), base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$1:%s$%s:%s", text(salt), text(stored[:]), text(key("Server Key"))), nil
}
