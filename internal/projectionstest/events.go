package projectionstest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// May is the time of most usage.
var May = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

// NewID returns a new id.
func NewID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// TenantIn finds a tenant id that lives in a partition.
func TenantIn(partition int16) uuid.UUID {
	for {
		if id := NewID(); events.PartitionOf(id) == partition {
			return id
		}
	}
}

// Usage is a recorded event of a tenant.
func Usage(tenant uuid.UUID, id, feature string, amount int64, at time.Time) events.Pending {
	body, err := json.Marshal(events.Usage{EventID: id, Feature: feature, Amount: amount, Timestamp: at, Type: "usage"})
	if err != nil {
		panic(err)
	}
	return events.Pending{EventID: NewID(), Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: events.KeyUsage(id),
		CorrelationID: NewID(),
		Actor:         events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified, OccurredAt: at, Payload: body,
		Counts: events.Counts{Accepted: 1}}
}

// Admitted is usage of a feature that was granted when it was recorded, in the month of its time.
func Admitted(tenant uuid.UUID, id, feature string, amount int64, at time.Time) events.Pending {
	p := Usage(tenant, id, feature, amount, at)
	used, held, period := json.Number("0"), json.Number("0"), domain.PeriodKey(domain.ResetMonthly, at)
	body, err := json.Marshal(events.Admitted{Usage: events.Usage{EventID: id, Feature: feature, Amount: amount, Timestamp: at, Type: "usage"},
		Admitted: events.Admission{By: events.ByConsume, SubscriptionID: NewID(), FeatureType: domain.FeatureQuota, PeriodKey: period,
			Used: &used, Held: &held}})
	if err != nil {
		panic(err)
	}
	p.Subject, p.Payload, p.Account = events.UsageAdmitted, body, &events.AccountChange{Feature: feature, PeriodKey: period, Used: amount}
	return p
}

// Committed is the commit of a reservation in May.
func Committed(tenant uuid.UUID, id, feature string, amount int64) events.Pending {
	p := Admitted(tenant, id, feature, amount, May)
	var a events.Admitted
	if err := json.Unmarshal(p.Payload, &a); err != nil {
		panic(err)
	}
	a.Admitted.By, a.Admitted.ReservationID = events.ByCommit, id
	var err error
	if p.Payload, err = json.Marshal(a); err != nil {
		panic(err)
	}
	return p
}

// Correction is a correction of usage to an amount; below 0 it is a retraction.
func Correction(tenant uuid.UUID, id, feature, ref string, amount int64) metering.Submitted {
	at := May.Add(40 * 24 * time.Hour) // in another period than the usage
	p := Usage(tenant, id, feature, 0, at)
	payload := any(events.Correction{EventID: id, Feature: feature, Amount: &amount, Timestamp: at, CorrectionRef: ref,
		Type: events.TypeCorrection})
	p.Subject = events.UsageCorrected
	if amount < 0 {
		p.Subject = events.UsageRetracted
		payload = events.Retraction{EventID: id, Feature: feature, Timestamp: at, CorrectionRef: ref, Type: events.TypeRetraction}
	}
	var err error
	if p.Payload, err = json.Marshal(payload); err != nil {
		panic(err)
	}
	p.Canonical = 1
	return metering.Submitted{Pending: p, Target: &metering.CorrectionTarget{Ref: ref, Feature: feature, Retraction: amount < 0}}
}

// Verdict is the acceptance of usage in May.
func Verdict(tenant uuid.UUID, feature string, amount int64) events.Pending {
	body, err := json.Marshal(events.Validated{RawPosition: 1, EventID: "e", Feature: feature, Amount: amount, Count: 1, Timestamp: May,
		FeatureType: "METERED", PeriodKey: "2026-05"})
	if err != nil {
		panic(err)
	}
	return events.Pending{EventID: NewID(), Subject: events.UsageValidated, TenantID: tenant, DedupeKey: events.KeyEvent(NewID()),
		Actor: events.Actor{Type: "service", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: May, Payload: body,
		Counts: events.Counts{Validated: 1}}
}

// Conflict is the record of an eventId sent again with another payload.
func Conflict(tenant uuid.UUID, eventID string, first events.Position, other string) events.Pending {
	hash := sha256.Sum256([]byte(other))
	payload, _ := json.Marshal(map[string]string{"eventId": eventID, "feature": "calls"})
	body, _ := json.Marshal(events.Conflicted{EventID: eventID, RawPosition: first.Number, FirstHash: hex.EncodeToString(make([]byte, 32)),
		ConflictHash: hex.EncodeToString(hash[:]), Payload: payload})
	return events.Pending{EventID: NewID(), Subject: events.UsageConflicted, TenantID: tenant,
		DedupeKey: events.KeyConflict(eventID, hash[:]),
		Actor:     events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified, OccurredAt: May, Payload: body}
}

// Plain makes any event that needs no key but its own.
func Plain(tenant uuid.UUID, subject events.Subject, counts events.Counts, payload any) events.Pending {
	id := NewID()
	body, err := json.Marshal(payload)
	if err != nil {
		panic(err)
	}
	return events.Pending{EventID: id, Subject: subject, TenantID: tenant, DedupeKey: events.KeyEvent(id),
		Actor:     events.Actor{Type: "service", ID: "test"},
		Residency: events.ResidencyUnspecified, OccurredAt: May, Payload: body, Counts: counts}
}

// Decode reads the payload of an event.
func Decode[T any](w *Database, e events.Envelope) (v T) {
	w.Helper()
	w.Must(json.Unmarshal(e.Payload, &v))
	return v
}

// Separate returns events as a process holds its own.
func Separate(list []events.Envelope) (all []*events.Envelope) {
	for i := range list {
		all = append(all, &list[i])
	}
	return all
}

// Grant returns a grant of a METERED feature without a limit.
func Grant(feature, reset string) domain.Grant {
	return domain.Grant{Entitlement: domain.Entitlement{Feature: feature, ResetPeriod: reset}, Type: domain.FeatureMetered}
}

// Account is a grant without a limit that has an account.
func Account(feature, reset string) domain.Grant {
	g := Grant(feature, reset)
	g.Type = domain.FeatureQuota
	return g
}

// Quota returns a grant with a limit; less than 0: unlimited.
func Quota(feature string, limit int64, behavior, reset string) domain.Grant {
	g := domain.Grant{Entitlement: domain.Entitlement{Feature: feature, LimitBehavior: behavior, ResetPeriod: reset,
		OnIngest: domain.OnIngestRecord}, Type: domain.FeatureQuota}
	if limit >= 0 {
		g.Limit = &limit
	}
	return g
}
