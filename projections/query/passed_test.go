package query_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	. "github.com/meterplex/meterplex/internal/projectionstest"
)

// modelEvent is an event of the model's log; position is its index + 1.
type modelEvent struct {
	subject   events.Subject
	tenant    int
	id, cause uuid.UUID
	raw       int64 // recorded position of a verdict or a retry
}

// passedModel is the reference: a partition's log with three consumers, evaluated by
// full scans.
type passedModel struct {
	t          *rapid.T
	tx         pgx.Tx
	tenants    []uuid.UUID
	log        []modelEvent
	rejected   []int64 // recorded positions that may be retried
	validator  int64
	aggregator int64
	reader     int64
	before     map[string]int64
}

const modelPartition = 7

func (m *passedModel) head() int64 { return int64(len(m.log)) }

func (m *passedModel) last(topic events.Topic) int64 {
	for i := len(m.log) - 1; i >= 0; i-- {
		if m.log[i].subject.Topic() == topic {
			return int64(i + 1)
		}
	}
	return 0
}

// next returns the first event of a topic after a position, 0 if not found.
func (m *passedModel) next(topic events.Topic, after int64) int64 {
	for p := after + 1; p <= m.head(); p++ {
		if m.log[p-1].subject.Topic() == topic {
			return p
		}
	}
	return 0
}

func (m *passedModel) append(subject events.Subject, tenant int, cause uuid.UUID, raw int64) {
	m.log = append(m.log, modelEvent{subject, tenant, NewID(), cause, raw})
	l := m.log[len(m.log)-1]
	payload := fmt.Sprintf(`{"rawPosition":%d}`, raw)
	if subject == events.Reaggregated {
		payload = fmt.Sprintf(`{"validated":{"rawPosition":%d}}`, raw)
	}
	m.exec(`INSERT INTO event_log_rows VALUES ($1, 0, now(), now(), $2, $3, NULL, $4, 0, 0, $5, $6, $7, $8, NULL, $9)`,
		m.head(), l.id, m.tenants[tenant], cause, int16(modelPartition), int16(subject.Topic()), int16(subject), "e/"+l.id.String(),
		payload)
}

func (m *passedModel) exec(sql string, args ...any) {
	m.t.Helper()
	if _, err := m.tx.Exec(context.Background(), sql, args...); err != nil {
		m.t.Fatal(err)
	}
}

func (m *passedModel) validate() {
	for range rapid.IntRange(1, 4).Draw(m.t, "validated at once") {
		at := m.next(events.TopicUsageRaw, m.validator)
		if at == 0 {
			return
		}
		l, raw := m.log[at-1], at
		if l.subject == events.UsageRetried {
			raw = l.raw
		}
		switch rapid.IntRange(0, 4).Draw(m.t, "verdict") {
		case 0:
			m.append(events.UsageRejected, l.tenant, l.id, raw)
			m.rejected = append(m.rejected, raw)
		case 1: // withheld: passed without a verdict
		default:
			m.append(events.UsageValidated, l.tenant, l.id, raw)
		}
		m.validator = at
	}
}

func (m *passedModel) step() {
	tenant := rapid.IntRange(0, len(m.tenants)-1).Draw(m.t, "tenant")
	switch rapid.SampledFrom([]string{"record", "record", "validate", "validate", "aggregate", "read", "catalogue", "retry", "again"}).
		Draw(m.t, "step") {
	case "record":
		for range rapid.IntRange(1, 5).Draw(m.t, "recorded at once") {
			m.append(events.UsageRecorded, tenant, uuid.Nil, 0)
		}
	case "validate":
		m.validate()
	case "aggregate":
		for range rapid.IntRange(1, 6).Draw(m.t, "aggregated at once") {
			if at := m.next(events.TopicUsageValidated, m.aggregator); at > 0 {
				m.aggregator = at
			}
		}
	case "read":
		m.reader = min(m.head(), m.reader+rapid.Int64Range(1, 9).Draw(m.t, "read at once"))
	case "catalogue":
		m.append(events.SubscriptionChanged, tenant, uuid.Nil, 0)
	case "retry":
		if len(m.rejected) > 0 {
			raw := rapid.SampledFrom(m.rejected).Draw(m.t, "retried")
			m.append(events.UsageRetried, m.log[raw-1].tenant, uuid.Nil, raw)
		}
	case "again":
		if at := m.last(events.TopicUsageValidated); at > 0 && m.log[at-1].subject == events.UsageValidated {
			m.append(events.Reaggregated, m.log[at-1].tenant, uuid.Nil, m.log[at-1].raw)
		}
	}
	m.exec(`UPDATE log_heads SET position = $1, topic_positions[1] = $2, topic_positions[2] = $3 WHERE partition = $4`,
		m.head(), m.last(events.TopicUsageRaw), m.last(events.TopicUsageValidated), int16(modelPartition))
	m.exec(`UPDATE consumer_checkpoints c SET position = n.position
		FROM unnest($1::text[], $2::bigint[]) AS n (consumer, position) WHERE c.consumer = n.consumer AND c.partition = $3`,
		[]string{events.GroupValidator, events.GroupAggregator, events.GroupEntitlements},
		[]int64{m.validator, m.aggregator, m.reader}, int16(modelPartition))
}

// passedByDefinition finds the greatest position up to which all is decided, and all is passed,
// for a tenant: by definition, event by event.
func (m *passedModel) passedByDefinition(tenant int, wholeLog bool) (decided, passed int64) {
	verdictOn := make(map[uuid.UUID]int64)
	for i, l := range m.log {
		if l.subject == events.UsageValidated {
			verdictOn[l.cause] = int64(i + 1)
		}
	}
	folded := m.aggregator
	if wholeLog {
		folded = m.reader
	}
	decided, passed = m.head(), m.head()
	for p := m.head(); p >= 1; p-- { // from the end, so that the first that is missing wins
		l := m.log[p-1]
		mine := l.tenant == tenant
		if mine && l.subject.Topic() == events.TopicUsageRaw && p > m.validator {
			decided, passed = p-1, p-1
		}
		if mine && verdictOn[l.id] > folded || mine && !wholeLog && l.subject == events.Reaggregated && p > folded {
			passed = p - 1
		}
	}
	if wholeLog {
		passed = min(passed, folded)
	}
	return decided, passed
}

func (m *passedModel) check(tenant int, wholeLog bool) {
	projection, consumer := "usage_aggregates", events.GroupAggregator
	if wholeLog {
		projection, consumer = "entitlement_reads", events.GroupEntitlements
	}
	decided, passed := m.passedByDefinition(tenant, wholeLog)
	for _, span := range []int64{1 << 40, 3} {
		var gotDecided, gotPassed int64
		err := m.tx.QueryRow(context.Background(),
			`SELECT decided, passed FROM consumer_standing($1::smallint, $2::uuid, $3, NULL, $4, $5, $6)`,
			modelPartition, m.tenants[tenant], projection, consumer, wholeLog, span).Scan(&gotDecided, &gotPassed)
		must.OK(m.t, err)
		exact := gotDecided == decided && gotPassed == passed
		if span > 3 && !exact || gotDecided > decided || gotPassed > passed {
			m.t.Fatalf("%s, tenant %d, span %d: decided %d, passed %d; true is %d, %d\n%s", projection, tenant, span, gotDecided, gotPassed,
				decided, passed, m)
		}
	}
	key := fmt.Sprint(projection, tenant)
	if passed < m.before[key] {
		m.t.Fatalf("%s, tenant %d: passed fell from %d to %d\n%s", projection, tenant, m.before[key], passed, m)
	}
	m.before[key] = passed
}

func (m *passedModel) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "validator %d, aggregator %d, reader %d\n", m.validator, m.aggregator, m.reader)
	for i, l := range m.log {
		info, _ := l.subject.Info()
		fmt.Fprintf(&b, "%d %s tenant %d on %d\n", i+1, info.Name(), l.tenant, l.raw)
	}
	return b.String()
}

// The passed position equals the model's and never falls; if only nearby positions
// are searched, it never exceeds the model's.
func TestPassedIsTrueAndNeverFalls(t *testing.T) {
	localtest.FewChecks(t, 60)
	w := NewDatabase(t)
	tenants := []uuid.UUID{TenantIn(modelPartition), TenantIn(modelPartition)}
	rapid.Check(t, func(t *rapid.T) {
		tx, err := w.Pool.Begin(context.Background())
		must.OK(t, err)
		defer tx.Rollback(context.Background())
		m := passedModel{t: t, tx: tx, tenants: tenants, before: map[string]int64{}}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			m.step()
			for tenant := range tenants {
				m.check(tenant, false)
				m.check(tenant, true)
			}
		}
	})
}
