package http_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// pausedLog fails from the third read of a partition on.
type pausedLog struct {
	projections.Log
	partition int16
	reads     atomic.Int32
	paused    chan struct{}
}

func (l *pausedLog) ReadTx(ctx context.Context, tx pgx.Tx, partition int16, after, upTo int64, topic events.Topic,
	limit int) ([]events.Envelope, error) {
	if partition == l.partition {
		switch n := l.reads.Add(1); {
		case n == 3:
			close(l.paused)
			fallthrough
		case n > 3:
			return nil, errors.New("paused")
		}
	}
	return l.Log.ReadTx(ctx, tx, partition, after, upTo, topic, limit)
}

// A consumer with records from before an erasure, and a rebuild that has folded a part of the log before it, leave no personal data and
// change no figure.
func TestP6_AConsumerAndARebuildBesideAnErasure(t *testing.T) {
	tier.AtSize(t)
	w := newErasureWorld(t, true)
	letters := deadletters.Consumer(models.DefaultFolds().DeadLetters)
	records, hashes := w.records(letters), w.hashes()
	log := &pausedLog{Log: w.log, partition: events.PartitionOf(uuid.MustParse(w.a.id)), paused: make(chan struct{})}
	stop := w.rebuilding(func(b *rebuild.Rebuilder) { b.Log, b.Chunk, b.Join = log, 12, 1 })
	r := w.want(202, call{"POST", "/api/v1/projections/usage_series/rebuilds", bootstrap, nil, `{"reason":"test"}`})
	<-log.paused
	stop()
	w.want(202, call{"POST", "/api/v1/tenants/" + w.a.id + "/erase", bootstrap, nil, `{"reason":"Article 17"}`})
	kind := w.erasures().ErasureKind()
	for s := new(domain.Saga); s.Missing == nil; { // the log is erased, the read models not
		w.exec(`UPDATE sagas SET next_at = now() WHERE kind = 'erasure' AND ended_at IS NULL`)
		if s = w.runStep([]commands.SagaKind{kind}, w.must); s == nil {
			t.Fatal("the erasure did not wait")
		}
	}
	w.must(w.runner(letters).Process(w.Context(), records))
	w.eraseAll(false)
	stop = w.rebuilding()
	w.awaitState(r["id"].(string), "READY")
	stop()
	if found := w.shown(hashes...); len(found) > 0 {
		t.Errorf("%d rows:\n%s", len(found), strings.Join(found, "\n"))
	}
	var rows, different int
	w.must(w.pool.QueryRow(w.Context(), `SELECT count(*), count(*) FILTER (WHERE n = 1) FROM (
 SELECT count(*) AS n FROM usage_series WHERE tenant_id = $1 GROUP BY feature, hour, group_values, amount, event_count) s`, w.a.id).
		Scan(&rows, &different))
	if rows < 2 || different > 0 {
		t.Errorf("%d of %d rows are in one generation only", different, rows)
	}
	w.verified()
	w.rebuildsAgree()
}
