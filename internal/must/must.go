// Package must ends a test at an error that is not its subject. It is for tests only, and imports no other package of the service.
package must

import (
	"context"
	"time"
)

// T is the part of a test, a benchmark or a property of rapid that ends it.
type T interface {
	Helper()
	Fatal(args ...any)
}

// OK ends the test if there is an error.
func OK(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Exec runs a statement on a pool, a connection or in a transaction.
func Exec[Result any](t interface {
	T
	Context() context.Context
}, on interface {
	Exec(ctx context.Context, sql string, args ...any) (Result, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := on.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err, sql)
	}
}

// Patience bounds a wait for a state. It is long because the machine may be busy.
const Patience = 2 * time.Minute

// Until waits until a condition holds, and ends the test if it does not within Patience.
func Until(t T, condition string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not so in time:", condition)
		}
	}
}
