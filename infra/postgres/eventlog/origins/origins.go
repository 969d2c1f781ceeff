// Package origins keeps the origins of events: a row of the log holds the number of its origin.
package origins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Origin holds the fields that all events of one actor at one instance share.
type Origin struct {
	Actor      events.Actor
	Producer   events.Producer
	Vocabulary *events.Vocabulary // one pointer for each hash
	Residency  string
}

// maxOrigins bounds the cache; beyond it each new origin evicts another one.
const maxOrigins = 50_000

// Origins keeps the numbers under which origins stand in the log. A number never changes
// within a life of the database server; a failover may lose the newest numbers, which are
// then given to other origins. So the cache starts again with each epoch.
type Origins struct {
	pool         postgres.Pool
	producer     events.Producer // of the events that are recorded here
	region       string          // of the deployment: the data residency of the platform's own events
	logger       *slog.Logger
	numbering    numbering
	mu           sync.RWMutex
	ids          map[Origin]int32
	byID         map[int32]Origin
	vocabularies map[string]*events.Vocabulary // that this binary does not hold, by their hashes
	stored       bool                          // the log holds the vocabulary of this binary
	epochs       [events.Partitions]atomic.Int32
	era          uint64 // grows when the cache starts again for an epoch
}

// InEpoch notes the epoch of a head or row. An epoch that is greater than all before it in the
// partition starts the cache again. The epoch is noted after that: a reader that finds it noted finds no number of an earlier epoch.
func (o *Origins) InEpoch(partition int16, epoch int32) {
	known := &o.epochs[partition]
	if epoch <= known.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if epoch <= known.Load() {
		return
	}
	o.era++
	o.ids, o.byID, o.stored = map[Origin]int32{}, map[int32]Origin{}, false
	known.Store(epoch)
}

// Era is the cache's era: numbers that were read in an earlier one may be wrong.
func (o *Origins) Era() uint64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.era
}

// New returns origins of events that a producer records in a region. They are read and added by connections of a pool that no
// holder of another connection waits for. Close ends their workers.
func New(pool postgres.Pool, producer events.Producer, region string, logger *slog.Logger) *Origins {
	return &Origins{pool: pool, producer: producer, region: region, logger: logger, numbering: newNumbering(),
		ids: map[Origin]int32{}, byID: map[int32]Origin{}, vocabularies: map[string]*events.Vocabulary{}}
}

// of is the origin of an event that is to be recorded. Only the platform's
// events have the deployment's region: a tenant's event without a residency was made
// by code that forgot it.
func (o *Origins) of(p *events.Pending) (Origin, error) {
	v := Origin{p.Actor, o.producer, events.CurrentVocabulary(), o.ResidencyOf(p)}
	if !events.IsResidency(v.Residency) {
		return v, fmt.Errorf("recording event %s of tenant %s: %.80q is not a data residency", p.EventID, codec.TenantText(p.TenantID),
			v.Residency)
	}
	return v, nil
}

// ResidencyOf is the data residency that an event is recorded under.
func (o *Origins) ResidencyOf(p *events.Pending) string {
	if p.Residency == "" && p.TenantID == events.Platform {
		return o.region
	}
	return p.Residency
}

// sameOrigin reports whether two pending events of one log have the same origin.
func sameOrigin(a, b *events.Pending) bool {
	return a.Actor == b.Actor && a.Residency == b.Residency && (a.Residency != "" || a.TenantID == b.TenantID)
}

// cached returns the number of an origin, if the cache has it.
func (o *Origins) cached(v Origin) (id int32, ok bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	id, ok = o.ids[v]
	return id, ok
}

// store caches a number that was read in an era, unless the cache has started again since.
// A full cache evicts one origin for it.
func (o *Origins) store(id int32, v Origin, era uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.era != era {
		return
	}
	if _, ok := o.byID[id]; !ok && len(o.byID) >= maxOrigins {
		for another, of := range o.byID { // a random one
			delete(o.byID, another)
			delete(o.ids, of)
			break
		}
	}
	o.ids[v], o.byID[id] = id, v
}

const (
	insertVocabularySQL = `INSERT INTO log_vocabularies (hash, document) VALUES ($1, $2) ON CONFLICT DO NOTHING`

	// LIMIT 1 makes the planner use the key of the origins' values, whatever it assumes of their number.
	findOriginsSQL = `SELECT v.n, o.id FROM unnest($1::text[], $2::text[], $3::text[], $8::text[]) WITH ORDINALITY AS v (actor_type,
		actor_id, residency, via, n)
 CROSS JOIN LATERAL (SELECT o.id FROM log_origins o WHERE o.actor_type = v.actor_type AND o.actor_id = v.actor_id
 AND o.residency = v.residency AND o.via = v.via
  AND o.service = $4 AND o.instance = $5 AND o.commit = $6 AND o.vocabulary = $7 LIMIT 1) o`

	// Each row takes a number of the identity, also one that is not inserted because another
	// session has added the origin.
	insertOriginsSQL = `INSERT INTO log_origins (actor_type, actor_id, residency, via, service, instance, commit, vocabulary)
 SELECT v.actor_type, v.actor_id, v.residency, v.via, $4, $5, $6, $7 FROM unnest($1::text[], $2::text[], $3::text[],
 $8::text[]) AS v (actor_type, actor_id, residency, via)
 ON CONFLICT DO NOTHING`

	foreignKeyViolation = "23503"
	// sequenceExhausted is the state of an identity that has no next number.
	sequenceExhausted = "2200H"
)

// number returns the number of each origin. It adds the missing ones: known ones take no
// number of the identity. All origins of a log have one producer and one vocabulary.
func (o *Origins) number(ctx context.Context, list []Origin) (map[Origin]int32, error) {
	era := o.Era()
	list = slices.Clone(list)
	slices.SortFunc(list, compareOrigins) // sessions that add the same origins do not deadlock
	list = slices.Compact(list)
	found := make(map[Origin]int32, len(list))
	var err error
	for range 3 {
		if err = o.find(ctx, list, found); err != nil {
			continue
		}
		for v, id := range found {
			o.store(id, v, era)
		}
		missing := slices.DeleteFunc(slices.Clone(list), func(v Origin) bool { return found[v] > 0 })
		if len(missing) == 0 {
			return found, nil
		}
		err = o.insert(ctx, missing)
	}
	switch {
	case postgres.SQLState(err) == sequenceExhausted:
		return nil, fmt.Errorf("recording the origin of events: all %d numbers of log_origins are used; known keys still record events "+
			"(docs/decisions/0015-origins.md): %w", maxOriginNumber, err)
	case err == nil:
		err = fmt.Errorf("%d of %d are missing", len(list)-len(found), len(list))
	}
	return nil, fmt.Errorf("recording the origin of events: %w", err)
}

func compareOrigins(a, b Origin) int {
	return cmp.Or(strings.Compare(a.Actor.Type, b.Actor.Type), strings.Compare(a.Actor.ID, b.Actor.ID),
		strings.Compare(a.Residency, b.Residency),
		strings.Compare(a.Actor.Via, b.Actor.Via))
}

// originArgs gives the parameters of findOriginsSQL and insertOriginsSQL.
func originArgs(list []Origin) []any {
	types, ids, residencies, ways := make([]string, len(list)), make([]string, len(list)), make([]string, len(list)),
		make([]string, len(list))
	for i, v := range list {
		types[i], ids[i], residencies[i], ways[i] = v.Actor.Type, v.Actor.ID, v.Residency, v.Actor.Via
	}
	by := &list[0]
	return []any{types, ids, residencies, by.Producer.Service, by.Producer.Instance, by.Producer.Commit, by.Vocabulary.Hash(), ways}
}

// find adds the numbers of known origins to found.
func (o *Origins) find(ctx context.Context, list []Origin, found map[Origin]int32) error {
	rows, err := o.pool.Query(ctx, findOriginsSQL, originArgs(list)...)
	if err != nil {
		return fmt.Errorf("looking up origins: %w", err)
	}
	var n int64
	var id int32
	_, err = pgx.ForEachRow(rows, []any{&n, &id}, func() error {
		found[list[n-1]] = id
		return nil
	})
	if err != nil {
		return fmt.Errorf("looking up origins: %w", err)
	}
	return nil
}

// insert inserts origins, in a transaction of its own. Another session may add the same ones
// concurrently: find returns the numbers.
func (o *Origins) insert(ctx context.Context, list []Origin) error {
	if err := o.storeVocabulary(ctx, list[0].Vocabulary); err != nil {
		return err
	}
	if _, err := o.pool.Exec(ctx, insertOriginsSQL, originArgs(list)...); err != nil {
		o.setStored(postgres.SQLState(err) != foreignKeyViolation)
		return fmt.Errorf("adding %d origins: %w", len(list), err)
	}
	return nil
}

// storeVocabulary copies the vocabulary of this binary into the log, which releases
// without it read. It is there before the first origin that names it.
func (o *Origins) storeVocabulary(ctx context.Context, v *events.Vocabulary) error {
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

func (o *Origins) setStored(stored bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored = stored
}

// Resolve gives the origins of numbers that were read from the log: of all of them, or
// an error.
func (o *Origins) Resolve(ctx context.Context, q postgres.Queryer, ids []int32) (map[int32]Origin, error) {
	known := make(map[int32]Origin, 4)
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

const originsSQL = `SELECT id, actor_type, actor_id, service, instance, commit, vocabulary, residency, via FROM log_origins
	WHERE id = ANY($1)`

// read adds the origins of some numbers to known, and to the cache.
func (o *Origins) read(ctx context.Context, q postgres.Queryer, ids []int32, known map[int32]Origin) error {
	era := o.Era()
	rows, err := q.Query(ctx, originsSQL, ids)
	if err != nil {
		return fmt.Errorf("reading origins: %w", err)
	}
	var id int32
	var v Origin
	var hash string
	hashes := map[int32]string{}
	_, err = pgx.ForEachRow(rows, []any{&id, &v.Actor.Type, &v.Actor.ID, &v.Producer.Service, &v.Producer.Instance, &v.Producer.Commit,
		&hash, &v.Residency, &v.Actor.Via}, func() error {
		known[id], hashes[id] = v, hash
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading origins: %w", err)
	}
	for id, hash := range hashes {
		v := known[id]
		if v.Vocabulary, err = o.vocabulary(ctx, q, hash); err != nil {
			return err
		}
		known[id] = v
		o.store(id, v, era)
	}
	return nil
}

const vocabularySQL = `SELECT document FROM log_vocabularies WHERE hash = $1`

// vocabulary gives the vocabulary of a hash: this binary's copy, or else the log's.
func (o *Origins) vocabulary(ctx context.Context, q postgres.Queryer, hash string) (*events.Vocabulary, error) {
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
