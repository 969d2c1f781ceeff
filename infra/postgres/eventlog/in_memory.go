package eventlog

import (
	"strings"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// offer offers the events of a committed group to the relay and the consumers of this process, and
// reports whether the consumers of topics are notified of all. They are notified of no member that was found in the log: its row is gone.
func (g *group) offer() (all bool) {
	cache := g.log.cfg.Recent
	if !cache.HasReaders() {
		return false
	}
	notified := 0
	for i := range g.rows {
		r := &g.rows[i]
		at := events.RecordPosition{Position: r.Position, Previous: r.Previous, Epoch: r.Epoch, Log: g.log.id, EventID: r.EventID}
		event := func() *events.Envelope { return g.event(r) }
		if cache.Offer(at, r.Topic, r.Subject, event) || g.folded(r) {
			notified++
		}
	}
	return notified == len(g.rows) && !g.ours
}

// event returns the event of a row in memory of its own, which is made once.
func (g *group) event(r *server.Row) *events.Envelope {
	if r.Made == nil {
		e := g.log.envelope(r)
		r.Made = &e
	}
	return r.Made
}

// written offers the events of rows to Config.Written. Callers still own the memory of the rows.
func (l *Log) written(rows []server.Row) {
	if l.cfg.Written == nil || len(rows) == 0 {
		return
	}
	l.cfg.Written(len(rows), func(i int) (events.Subject, []byte) { return rows[i].Subject, rows[i].OwnPayload() })
}

// envelope returns the event of a row, as it is read from the log, in memory of its own.
func (l *Log) envelope(r *server.Row) events.Envelope {
	return events.Envelope{
		LogID: l.id, EventID: r.EventID, Subject: r.Subject, TenantID: r.TenantID, Position: r.Position, Previous: r.Previous,
		Epoch:         r.Epoch,
		CorrelationID: r.CorrelationID, CausationID: r.CausationID, Actor: r.Actor, Producer: l.cfg.Producer,
		OccurredAt: time.UnixMicro(r.OccurredAt.UnixMicro()),
		RecordedAt: r.Recorded, DedupeKey: strings.Clone(r.DedupeKey), Replay: strings.Clone(r.Replay),
		Vocabulary: events.CurrentVocabulary(), Residency: l.origins.ResidencyOf(r.Pending),
		Payload: r.OwnPayload(),
	}
}
