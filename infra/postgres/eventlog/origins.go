package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
)

// origin holds the fields that all events of one actor at one instance share.
type origin struct {
	actor      events.Actor
	producer   events.Producer
	vocabulary *events.Vocabulary // one pointer for each hash
	residency  string
}

// maxOrigins bounds the cache; beyond it the cache starts anew.
const maxOrigins = 50_000

// origins keeps the numbers under which origins stand in the log. A number never changes
// within a life of the database server; a failover may lose the newest numbers, which are
// then given to other origins. So the cache starts again with each epoch.
type origins struct {
	pool         postgres.Pool
	mu           sync.RWMutex
	ids          map[origin]int32
	byID         map[int32]origin
	vocabularies map[string]*events.Vocabulary // that this binary does not hold, by their hashes
	stored       bool                          // the log holds the vocabulary of this binary
	epochs       [events.Partitions]atomic.Int32
	era          uint64 // grows when the cache starts again for an epoch
}

// inEpoch notes the epoch of a head or row. An epoch that is greater than all before it in the
// partition starts the cache again.
func (o *origins) inEpoch(partition int16, epoch int32) {
	known := o.epochs[partition].Load()
	if epoch <= known || !o.epochs[partition].CompareAndSwap(known, epoch) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.era++
	o.ids, o.byID, o.stored = map[origin]int32{}, map[int32]origin{}, false
}

// now is the cache's era: numbers that were read in an earlier one may be wrong.
func (o *origins) now() uint64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.era
}

func newOrigins(pool postgres.Pool) *origins {
	return &origins{pool: pool, ids: map[origin]int32{}, byID: map[int32]origin{}, vocabularies: map[string]*events.Vocabulary{}}
}

// originOf is the origin of an event that is to be recorded. Only the platform's
// events have the deployment's region: a tenant's event without a residency was made
// by code that forgot it.
func (l *Log) originOf(p *events.Pending) (origin, error) {
	o := origin{p.Actor, l.cfg.Producer, events.CurrentVocabulary(), p.Residency}
	if p.Residency == "" && p.TenantID == events.Platform {
		o.residency = l.cfg.Region
	}
	if !events.IsResidency(o.residency) {
		return o, fmt.Errorf("recording event %s of tenant %s: %.80q is not a data residency", p.EventID, codec.TenantText(p.TenantID), o.residency)
	}
	return o, nil
}

// sameOrigin reports whether two pending events of one log have the same origin.
func sameOrigin(a, b *events.Pending) bool {
	return a.Actor == b.Actor && a.Residency == b.Residency && (a.Residency != "" || a.TenantID == b.TenantID)
}

const (
	insertVocabularySQL = `INSERT INTO log_vocabularies (hash, document) VALUES ($1, $2) ON CONFLICT DO NOTHING`

	// A known origin takes no number of the identity.
	insertOriginSQL = `WITH known AS (
 SELECT id FROM log_origins WHERE actor_type = $1 AND actor_id = $2 AND service = $3 AND instance = $4 AND commit = $5 AND vocabulary = $6 AND residency = $7
), new AS (
 INSERT INTO log_origins (actor_type, actor_id, service, instance, commit, vocabulary, residency)
 SELECT $1, $2, $3, $4, $5, $6, $7 WHERE NOT EXISTS (SELECT FROM known) ON CONFLICT DO NOTHING RETURNING id)
SELECT id FROM known UNION ALL SELECT id FROM new`

	foreignKeyViolation = "23503"
)

// id gives the number of an origin, in a transaction of its own if it is new. If
// another session adds the same origin concurrently, the statement does not see it; the
// next try does.
func (o *origins) id(ctx context.Context, v origin) (int32, error) {
	o.mu.RLock()
	id, ok := o.ids[v]
	era := o.era
	o.mu.RUnlock()
	if ok {
		return id, nil
	}
	var err error
	for range 3 {
		if err = o.storeVocabulary(ctx, v.vocabulary); err != nil {
			continue
		}
		err = o.pool.QueryRow(ctx, insertOriginSQL, v.actor.Type, v.actor.ID, v.producer.Service, v.producer.Instance, v.producer.Commit,
			v.vocabulary.Hash(), v.residency).Scan(&id)
		if err == nil {
			o.store(id, v, era)
			return id, nil
		}
		o.setStored(postgres.SQLState(err) != foreignKeyViolation)
	}
	return 0, fmt.Errorf("recording the origin of events: %w", err)
}

// storeVocabulary copies the vocabulary of this binary into the log, which releases
// without it read. It is there before the first origin that names it.
func (o *origins) storeVocabulary(ctx context.Context, v *events.Vocabulary) error {
	o.mu.RLock()
	stored := o.stored
	o.mu.RUnlock()
	if stored {
		return nil
	}
	if _, err := o.pool.Exec(ctx, insertVocabularySQL, v.Hash(), v.Document()); err != nil {
		return fmt.Errorf("storing the vocabulary %s: %w", v.Hash(), err)
	}
	o.setStored(true)
	return nil
}

func (o *origins) setStored(stored bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored = stored
}

// store caches a number that was read in an era, unless the cache has started again since.
func (o *origins) store(id int32, v origin, era uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.era != era {
		return
	}
	if len(o.ids) >= maxOrigins {
		o.ids, o.byID = map[origin]int32{}, map[int32]origin{}
	}
	o.ids[v], o.byID[id] = id, v
}

// resolve gives the origins of numbers that were read from the log: of all of them, or
// an error.
func (o *origins) resolve(ctx context.Context, q postgres.Queryer, ids []int32) (map[int32]origin, error) {
	known := make(map[int32]origin, 4)
	var missing []int32
	o.mu.RLock()
	for _, id := range ids {
		if _, ok := known[id]; ok {
			continue
		}
		if v, ok := o.byID[id]; ok {
			known[id] = v
		} else {
			missing = append(missing, id)
		}
	}
	o.mu.RUnlock()
	if len(missing) == 0 {
		return known, nil
	}
	if err := o.read(ctx, q, missing, known); err != nil {
		return nil, err
	}
	for _, id := range missing {
		if _, ok := known[id]; !ok {
			return nil, fmt.Errorf("reading origins: the log has no origin %d", id)
		}
	}
	return known, nil
}

const originsSQL = `SELECT id, actor_type, actor_id, service, instance, commit, vocabulary, residency FROM log_origins WHERE id = ANY($1)`

// read adds the origins of some numbers to known, and to the cache.
func (o *origins) read(ctx context.Context, q postgres.Queryer, ids []int32, known map[int32]origin) error {
	era := o.now()
	rows, err := q.Query(ctx, originsSQL, ids)
	if err != nil {
		return fmt.Errorf("reading origins: %w", err)
	}
	var id int32
	var v origin
	var hash string
	hashes := map[int32]string{}
	_, err = pgx.ForEachRow(rows, []any{&id, &v.actor.Type, &v.actor.ID, &v.producer.Service, &v.producer.Instance, &v.producer.Commit, &hash, &v.residency}, func() error {
		known[id], hashes[id] = v, hash
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading origins: %w", err)
	}
	for id, hash := range hashes {
		v := known[id]
		if v.vocabulary, err = o.vocabulary(ctx, q, hash); err != nil {
			return err
		}
		known[id] = v
		o.store(id, v, era)
	}
	return nil
}

const vocabularySQL = `SELECT document FROM log_vocabularies WHERE hash = $1`

// vocabulary gives the vocabulary of a hash: this binary's copy, or else the log's.
func (o *origins) vocabulary(ctx context.Context, q postgres.Queryer, hash string) (*events.Vocabulary, error) {
	if v, ok := events.EmbeddedVocabulary(hash); ok {
		return v, nil
	}
	o.mu.RLock()
	v := o.vocabularies[hash]
	o.mu.RUnlock()
	if v != nil {
		return v, nil
	}
	rows, err := q.Query(ctx, vocabularySQL, hash)
	if err != nil {
		return nil, fmt.Errorf("reading the vocabulary %s: %w", hash, err)
	}
	document, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("the vocabulary %s of recorded events is neither in this release nor in log_vocabularies", hash)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the vocabulary %s: %w", hash, err)
	}
	if v, err = events.ParseVocabulary(hash, document); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if other := o.vocabularies[hash]; other != nil {
		return other, nil
	}
	o.vocabularies[hash] = v
	return v, nil
}
