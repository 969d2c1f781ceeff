package eventlog

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/infra/local/localtest"
)

func TestP1_NothingIsAnsweredBeforeItsCommit(t *testing.T) {
	for name, size := range map[string]int{"small": 1, "large": 3 * smallRows} {
		t.Run(name, func(t *testing.T) {
			l, _, database := openLog(t)
			tenant := uuid.Must(uuid.NewV7())
			var batch []commands.Submitted
			for n := range size {
				batch = append(batch, usageEvent(tenant, fmt.Sprint("e", n), 1))
			}
			held := localtest.HoldCommits(t, database, "INSERT", "event_log_rows")
			answered := make(chan error, 1)
			go func() {
				_, err := l.Submit(context.Background(), tenant, batch)
				answered <- err
			}()
			held.Reached()
			select {
			case err := <-answered:
				answered <- err
				t.Errorf("a batch was answered while its COMMIT was under way: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			held.LetGo()
			if err := <-answered; err != nil {
				t.Error(err)
			}
		})
	}
}
