package prometheus

import (
	"testing"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/internal/tier"
)

// A session plans the statement once, perhaps while the log is empty, and repeats it every two seconds while the log grows.
func TestTheBacklogIsReadByTheKeyOfTheLog(t *testing.T) {
	tier.AtSize(t)
	conn, err := migrated(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if plan := localtest.Plan(t, conn.Conn(), headsSQL); !localtest.LogByKey(plan) {
		t.Errorf("the log is not read by its key:\n%s", plan)
	}
}
