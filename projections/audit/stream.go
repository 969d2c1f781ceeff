package audit

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// Stream names the events of one aggregate; the zero value is all events.
type Stream struct {
	Kind string
	ID   string
}

// Kinds of streams.
const (
	streamUsage        = "usage"        // by the producer's eventId, unique in its tenant
	streamDeadLetter   = "dead-letter"  // by its id
	streamTenant       = "tenant"       // by its id
	streamAPIKey       = "api-key"      // by its id
	streamSubscription = "subscription" // by its id
	streamFeature      = "feature"      // by its lookupKey
	streamPlan         = "plan"         // by its key
	streamRebuild      = "rebuild"      // by its id
)

// ParseStream reads kind/id.
func ParseStream(s string) (Stream, error) {
	kind, id, ok := strings.Cut(s, "/")
	if !ok || id == "" || !query.Storable(id) {
		return Stream{}, ErrStreamInvalid
	}
	switch kind {
	case streamUsage, streamFeature, streamPlan:
	case streamDeadLetter, streamTenant, streamAPIKey, streamSubscription, streamRebuild:
		if parsed, err := uuid.Parse(id); err != nil || parsed.String() != id {
			return Stream{}, ErrStreamInvalid
		}
	default:
		return Stream{}, ErrStreamInvalid
	}
	return Stream{kind, id}, nil
}

// NeedsTenant reports whether the id is unique in its tenant only.
func (s Stream) NeedsTenant() bool { return s.Kind == streamUsage }

// Partitions returns the partitions that can hold the stream.
func (s Stream) Partitions() []int16 {
	switch s.Kind {
	case streamFeature, streamPlan:
		return []int16{events.PartitionOf(events.Platform)}
	case streamTenant:
		return []int16{events.PartitionOf(uuid.MustParse(s.ID))}
	}
	return projections.Scope{}.Partitions()
}

// has reports whether events of a subject can be in the stream at all.
func (s Stream) has(info *events.SubjectInfo) bool {
	aggregate := strings.Split(info.Type, ".")[2]
	fate := aggregate == "dead_letter" || info.Subject == events.UsageRejected || info.Subject == events.UsageConflicted ||
		info.Subject == events.PublishFailed || info.Subject == events.AggregationFailed ||
		info.Subject == events.UsageRetried || info.Subject == events.Reaggregated
	switch s.Kind {
	case "":
		return true
	case streamUsage:
		return fate || aggregate == "event" && info.Subject != events.DuplicatesSeen && info.Subject != events.RefusalsSeen
	case streamDeadLetter:
		return fate
	}
	return aggregate == strings.ReplaceAll(s.Kind, "-", "_")
}

// among returns those of the subjects that can be in the stream; nil means all.
func (s Stream) among(asked []events.Subject) []events.Subject {
	if s.Kind == "" {
		return asked
	}
	within := []events.Subject{}
	for _, info := range events.Subjects() {
		if s.has(&info) && (asked == nil || slices.Contains(asked, info.Subject)) {
			within = append(within, info.Subject)
		}
	}
	return within
}

// SubjectsOf returns the subject of a name, or all that begin with the words given.
func SubjectsOf(name string) ([]events.Subject, error) {
	var found []events.Subject
	for _, info := range events.Subjects() {
		rest, ok := strings.CutPrefix(info.Name(), name)
		if ok && name != "" && (rest == "" || rest[0] == '.' || strings.HasSuffix(name, ".")) {
			found = append(found, info.Subject)
		}
	}
	if found == nil {
		return nil, ErrSubjectUnknown
	}
	return found, nil
}

// The start of a usage stream, and the event's dead letters by their projection.
const readUsageStream = `
SELECT l.position, array(
  SELECT d.id::text FROM projection_pointers p
  JOIN dead_letter_events d ON d.generation = p.generation AND d.tenant_id = $2 AND d.producer_event_id = $3
  WHERE p.live AND p.projection = '` + projections.ProjectionDeadLetters +
	`' AND p.tenant_id IN ($2, '00000000-0000-0000-0000-000000000000'))
FROM event_log l WHERE l.partition = $1 AND l.tenant_id = $2 AND l.dedupe_key = $4`

// followStream begins the walk at the start of the stream.
func (w *walk) followStream(ctx context.Context, tx pgx.Tx) error {
	f := w.filter
	switch f.Stream.Kind {
	case streamDeadLetter, streamRebuild:
		return w.followEvent(ctx, tx, uuid.MustParse(f.Stream.ID))
	case streamUsage:
		if f.TenantID == nil {
			return ErrStreamInvalid
		}
	default:
		return nil
	}
	partition := events.PartitionOf(*f.TenantID)
	err := query.Run(ctx, tx, query.New(readUsageStream, []any{partition, f.TenantID, f.Stream.ID, events.KeyUsage(f.Stream.ID)},
		query.One(&w.recorded, &w.letters)))
	switch {
	case err != nil:
		return err
	case w.recorded == 0: // never accepted: it has no effects
		w.upTo = Frontier{}
		return nil
	}
	w.after[partition] = max(w.after[partition], w.recorded-1)
	return query.Run(ctx, tx, keyed(*f.TenantID, partition, nil, []keyRange{rejectionsOf(w.recorded)}, w.scanRejection))
}

// scanRejection adds the dead letter of a rejection to the stream.
func (w *walk) scanRejection(rows pgx.Rows) error {
	var number int64
	var at time.Time
	var subject events.Subject
	var payload []byte
	if err := rows.Scan(&number, &at, &subject, &payload); err != nil {
		return err
	}
	var no events.Rejected
	err := json.Unmarshal(payload, &no)
	w.letters = append(w.letters, no.DeadLetterID.String())
	return err
}

// followEvent begins the walk at the event that the stream is named after.
func (w *walk) followEvent(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	first, err := positionOf(ctx, tx, id, w.filter.TenantID)
	if err != nil {
		return err
	}
	if first == nil {
		w.upTo = Frontier{}
		return nil
	}
	for p := range w.upTo {
		if p != int(first.Partition) {
			w.upTo[p] = 0
		}
	}
	w.after[first.Partition] = max(w.after[first.Partition], first.Number-1)
	return nil
}
