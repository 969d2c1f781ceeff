package eventlog

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// admissionOf creates a tenant in a state with a key, which ends as set says, and returns what admission saw of it before.
func admissionOf(t *testing.T, pool *pgxpool.Pool, status, set string) *commands.Admission {
	t.Helper()
	a := &commands.Admission{TenantID: uuid.Must(uuid.NewV7()), KeyID: uuid.Must(uuid.NewV7())}
	must.Exec(t, pool, `INSERT INTO tenants (id, name, class, status, created_at, data_residency) VALUES ($1, 'T', 'small', $2, now(),
		'unspecified')`, a.TenantID, status)
	must.Exec(t, pool, `INSERT INTO api_keys (id, tenant_id, name, prefix, mode, scopes, secret_hash, created_at) VALUES ($1, $2, 'k', 'p',
		'live', '{}', sha256(gen_random_uuid()::text::bytea), now())`,
		a.KeyID, a.TenantID)
	must.Exec(t, pool, `UPDATE api_keys SET `+set+` WHERE id = $1`, a.KeyID)
	return a
}

// submissionBy makes a submission of two events.
func submissionBy(a *commands.Admission) *submission {
	s := &submission{tenant: a.TenantID, admission: a, done: make(chan error, 1), load: newQueueLoad(time.Hour),
		outcomes: make([]metering.Outcome, 2)}
	s.batch = []metering.Submitted{usageEvent(a.TenantID, "a", 1), usageEvent(a.TenantID, "b", 1)}
	return s
}

// headOf returns how far the catalogue of a tenant's partition has come.
func headOf(t *testing.T, pool *pgxpool.Pool, tenant uuid.UUID) (at commands.CatalogueAt) {
	t.Helper()
	must.OK(t, pool.QueryRow(t.Context(), `SELECT epoch, greatest(topic_positions[$2], topic_positions[$3]) FROM log_heads
		WHERE partition = $1`,
		events.PartitionOf(tenant), events.TopicCatalogue, events.TopicBilling).Scan(&at.Epoch, &at.Position))
	return at
}

// One group has submissions of many tenants: those whose key or tenant ended since admission are refused, and the rest is stored.
func TestAGroupRefusesTheSubmissionsWhoseKeyEnded(t *testing.T) {
	l, pool, _ := openLog(t)
	const never, ended = `expires_at = NULL`, `ended = true, revoked_at = now() + interval '1 hour'`
	cases := []struct {
		status, set, code string
		refusing          bool
	}{
		{domain.TenantActive, never, "", false},
		{domain.TenantActive, ended, "unauthenticated", false},
		{domain.TenantActive, `revoked_at = now() - interval '1 hour'`, "unauthenticated", false},
		{domain.TenantActive, `expires_at = now() - interval '1 hour'`, "unauthenticated", false},
		{domain.TenantSuspended, never, "tenant_suspended", false},
		{domain.TenantArchived, never, "unauthenticated", false},
		{domain.TenantSuspended, never, "", true},
		{domain.TenantArchived, never, "unauthenticated", true}, // the sent events may be erased by now
		{domain.TenantActive, never, "", false},
	}
	for what, seen := range map[string]func(commands.CatalogueAt) commands.CatalogueAt{
		"not known":     func(commands.CatalogueAt) commands.CatalogueAt { return commands.CatalogueAt{} },
		"earlier":       func(at commands.CatalogueAt) commands.CatalogueAt { at.Position--; return at },
		"another epoch": func(at commands.CatalogueAt) commands.CatalogueAt { at.Epoch--; return at },
		"unchanged":     func(at commands.CatalogueAt) commands.CatalogueAt { return at },
	} {
		t.Run(what, func(t *testing.T) {
			var subs []*submission
			for _, c := range cases {
				a := admissionOf(t, pool, c.status, c.set)
				a.Seen, a.Refusing = seen(headOf(t, pool, a.TenantID)), c.refusing
				subs = append(subs, submissionBy(a))
			}
			newWriter(l, false).commit(subs)
			for i, c := range cases {
				err, refusal := <-subs[i].done, (*domain.Error)(nil)
				errors.As(err, &refusal)
				if what == "unchanged" { // the head confirms what admission saw: the tables, which no event changed, are not read
					c.code = ""
				}
				if c.code == "" && (err != nil || subs[i].outcomes[1].Status != metering.Appended) ||
					c.code != "" && (refusal == nil || refusal.Code != c.code || subs[i].outcomes != nil) {
					t.Errorf("%s, %s: %v, %v; want %q", c.status, c.set, err, subs[i].outcomes, c.code)
				}
				var stored int
				must.OK(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1`, subs[i].tenant).
					Scan(&stored))
				if want := map[bool]int{true: 2, false: 0}[c.code == ""]; stored != want {
					t.Errorf("%s, %s: %d rows are stored, want %d", c.status, c.set, stored, want)
				}
			}
		})
	}
}

// If a key ends after a COMMIT without an answer, the events may be recorded: the refusal must not deny that.
func TestARefusalAfterALostCommitIsUnknown(t *testing.T) {
	cut, proxied := localtest.NewCutter(t, migrated(t))
	end := time.Now().Add(time.Hour).Truncate(time.Second) // the database keeps microseconds
	l, pool := openLogAt(t, proxied, func(c *Config) {
		c.Now = func() time.Time {
			if cut.Reached.Load() > 0 {
				return end
			}
			return time.Now()
		}
	})
	a, other := admissionOf(t, pool, domain.TenantActive, `expires_at = now()`), uuid.Must(uuid.NewV7())
	must.Exec(t, pool, `UPDATE api_keys SET expires_at = $2 WHERE id = $1`, a.KeyID, end)
	a.Seen, a.Until = headOf(t, pool, a.TenantID), &end
	submit(t, l, other, usageEvent(other, "warm", 1)) // origins are known, the statements are prepared
	s := submissionBy(a)
	cut.Request.Store(1)
	newWriter(l, false).commit([]*submission{s})
	if err := <-s.done; !errors.Is(err, commands.ErrUnavailable) || errors.As(err, new(*domain.Error)) || cut.Reached.Load() != 1 {
		t.Errorf("answered by %v after %d lost COMMITs", err, cut.Reached.Load())
	}
}
