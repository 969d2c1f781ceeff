package localtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A login still needs its password, which is hashed once.
func TestPasswordsAreHashedOnce(t *testing.T) {
	database := Database(t)
	conn, err := pgx.Connect(t.Context(), SuperuserURL(t, database))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var stored []string
	if err := conn.QueryRow(t.Context(), `SELECT array_agg(rolpassword) FROM pg_authid WHERE rolname IN ('postgres', 'meterplex')`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	for _, s := range stored {
		if !strings.HasPrefix(s, "SCRAM-SHA-256$1:") {
			t.Errorf("a password is stored as %q", s)
		}
	}
	cc, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	cc.Password = "wrong"
	if other, err := pgx.ConnectConfig(t.Context(), cc); err == nil || !strings.Contains(err.Error(), "28P01") {
		t.Errorf("with another password: %v", err)
		if err == nil {
			_ = other.Close(t.Context())
		}
	}
}
