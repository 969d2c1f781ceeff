package prometheus

import (
	"math"
	"strconv"
	"strings"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/state"
)

// stateGauge shows a part of the state of the database. Its known series exist before the first read: a rule cannot distinguish a missing
// series from an event that never happened.
type stateGauge struct {
	name, help string
	labels     []string
	known      [][]string // values of the labels
	before     float64    // the value of known series that the state does not have
	values     func(s *state.State, add addValue)
}

// addValue adds to a series.
type addValue func(value float64, labels ...string)

// stateGauges collects the gauges of the state that an instance has read.
type stateGauges struct {
	state  func() *state.State
	gauges []stateGauge
	descs  []*prom.Desc
}

func newStateGauges(read func() *state.State, groups ...[]stateGauge) *stateGauges {
	c := &stateGauges{state: read}
	for _, group := range groups {
		for _, g := range group {
			if len(g.labels) == 0 {
				g.known = [][]string{nil}
			}
			c.gauges, c.descs = append(c.gauges, g), append(c.descs, prom.NewDesc("meterplex_"+g.name, g.help, g.labels, nil))
		}
	}
	return c
}

// Describe implements prom.Collector.
func (c *stateGauges) Describe(out chan<- *prom.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prom.Collector.
func (c *stateGauges) Collect(out chan<- prom.Metric) {
	read := c.state()
	for i, g := range c.gauges {
		series := map[string]float64{}
		for _, labels := range g.known {
			series[strings.Join(labels, "\x00")] = g.before
		}
		g.values(read, func(value float64, labels ...string) {
			of := strings.Join(labels, "\x00")
			if there := series[of]; !math.IsNaN(there) {
				value += there
			}
			series[of] = value
		})
		for of, value := range series {
			out <- prom.MustNewConstMetric(c.descs[i], prom.GaugeValue, value, strings.Split(of, "\x00")[:len(g.labels)]...)
		}
	}
}

// plain returns a gauge without labels.
func plain(name, help string, value func(*state.State) float64) stateGauge {
	return stateGauge{name: name, help: help, values: func(s *state.State, add addValue) { add(value(s)) }}
}

// progressGauges show how far the log is published and folded.
func progressGauges() []stateGauge {
	list := models.List(models.DefaultFolds(), nil)
	followed := func(figure func(*state.Consumer) float64) func(*state.State, addValue) {
		return func(s *state.State, add addValue) {
			for _, c := range s.Lags.Consumers(list) {
				add(figure(&c), follower(&c))
			}
		}
	}
	return []stateGauge{
		plain("log_head", "Events in the log.", func(s *state.State) float64 { return float64(s.Outbox.Recorded()) }),
		plain("outbox_unpublished_count", "Events in the log that were never published; a rewind does not change it.",
			func(s *state.State) float64 { return float64(s.Outbox.Totals.Unpublished) }),
		plain("outbox_oldest_unpublished_seconds",
			"Age of the oldest event in the log that was never published; a rewind does not change it.",
			func(s *state.State) float64 { return s.Outbox.Totals.OldestUnpublishedSeconds }),
		{name: "consumer_lag", help: "Log positions between a topic's consumer and the last event of the topic, including those of " +
			"other topics.",
			labels: []string{"topic", "partition"}, known: partitionsOfTopics(), values: lagOfPartitions},
		{name: "projection_lag_events", help: "Log positions between a projection and the last event of its source; consumers without a " +
			"projection have their own name.",
			labels: []string{"projection"}, known: followers(list), values: followed(func(c *state.Consumer) float64 {
				return float64(c.Positions)
			})},
		{name: "projection_lag_seconds", help: "Age of the oldest event that is not in the projection yet.",
			labels: []string{"projection"}, known: followers(list), values: followed(func(c *state.Consumer) float64 { return c.Seconds })},
	}
}

func partitionsOfTopics() (series [][]string) {
	for _, t := range events.Topics() {
		for p := range events.Partitions {
			if t.Consumer != "" {
				series = append(series, []string{t.Name, strconv.Itoa(p)})
			}
		}
	}
	return series
}

func lagOfPartitions(s *state.State, add addValue) {
	for _, l := range s.Lags {
		if l.Topic != 0 {
			add(float64(l.Behind), l.Topic.Name(), strconv.Itoa(int(l.Partition)))
		}
	}
	for p, n := range s.UsageCommands {
		add(float64(n), events.TopicUsageCommands.Name(), strconv.Itoa(int(p)))
	}
}

// followers returns the names of the projections, and of the consumers without one.
func followers(list []projections.Projection) (names [][]string) {
	lags := state.Lags{}
	for i := range list {
		lags = append(lags, state.Lag{Consumer: list[i].Consumer.Name})
	}
	for _, t := range events.Topics() {
		if t.Consumer != "" && !t.Topic.Outside() {
			lags = append(lags, state.Lag{Consumer: t.Consumer})
		}
	}
	for _, c := range lags.Consumers(list) {
		names = append(names, []string{follower(&c)})
	}
	return names
}

func follower(c *state.Consumer) string {
	if c.Projection != nil {
		return *c.Projection
	}
	return c.Name
}

// projectionGauges show how projections differ from the log, and the progress of rebuilds.
func projectionGauges() []stateGauge {
	list := models.List(models.DefaultFolds(), nil)
	var names [][]string
	for i := range list {
		names = append(names, []string{list[i].Name})
	}
	folded := func(figure func(*state.Unit) int64) func(*state.State, addValue) {
		return func(s *state.State, add addValue) {
			for _, u := range s.Units {
				if u.State != domain.RebuildReady && u.Live > 0 {
					add(float64(figure(&u)), u.Projection)
				}
			}
		}
	}
	return []stateGauge{
		{name: "projection_drift_rows", help: "Keys whose live rows differed from the log in the last verify; NaN before the first one.",
			labels: []string{"projection"}, known: names, before: math.NaN(), values: func(s *state.State, add addValue) {
				for _, r := range s.LastRebuilds {
					if r.Differs != nil {
						add(float64(*r.Differs), r.Projection)
					}
				}
			}},
		{name: "projection_broken_generations",
			help:   "Rebuilds whose rows are no longer updated: they cannot be promoted or rolled back to.",
			labels: []string{"projection"}, known: followers(list), values: func(s *state.State, add addValue) {
				for projection, n := range s.Generations.Broken() {
					add(float64(n), projection)
				}
			}},
		{name: "rebuilds_open", help: "Rebuilds under way or waiting for a decision.", labels: []string{"projection", "state"},
			values: func(s *state.State, add addValue) {
				for i, u := range s.Units {
					if i == 0 || s.Units[i-1].RebuildID != u.RebuildID {
						add(1, u.Projection, u.State)
					}
				}
			}},
		{name: "rebuild_events_done", help: "Events that rebuilds have added up that are not READY yet.", labels: []string{"projection"},
			values: folded(func(u *state.Unit) int64 { return min(u.Position, u.Live) })},
		{name: "rebuild_events_total", help: "Events that these rebuilds must add up to reach the live rows.",
			labels: []string{"projection"},
			values: folded(func(u *state.Unit) int64 { return u.Live })},
	}
}

// workGauges show work that waits or needs an operator. Sagas are shown by all kinds, also those that only a newer release knows.
func workGauges(sagaKinds []string) []stateGauge {
	var letters, kinds [][]string
	for _, status := range []string{"FAILED", "RETRYING"} {
		for _, stage := range []string{events.StageIngestion, events.StagePublishing, events.StageValidation, events.StageAggregation} {
			letters = append(letters, []string{status, stage})
		}
	}
	for _, kind := range sagaKinds {
		kinds = append(kinds, []string{kind})
	}
	sagas := func(label func(*state.OpenSagas) string) func(*state.State, addValue) {
		return func(s *state.State, add addValue) {
			for _, g := range s.Sagas {
				add(float64(g.Count), label(&g))
			}
		}
	}
	return []stateGauge{
		{name: "dead_letters", help: "Dead letters that are FAILED or RETRYING; counted up to 100,000 of each.",
			labels: []string{"status", "stage"}, known: letters, values: func(s *state.State, add addValue) {
				for _, l := range s.DeadLetters.Groups {
					add(float64(l.Count), l.Status, l.Stage)
				}
			}},
		{name: "saga_inflight", help: "Open background processes by kind.", labels: []string{"kind"}, known: kinds,
			values: sagas(func(g *state.OpenSagas) string { return g.Kind })},
		{name: "saga_open", help: "Open background processes by state: RUNNING, PARTIAL (deadline passed) or DRIFT (a comparison failed).",
			labels: []string{"state"},
			known:  [][]string{{domain.SagaRunning}, {domain.SagaPartial}, {domain.SagaDrift}},
			values: sagas(func(g *state.OpenSagas) string { return g.State })},
		{name: "billing_pushes_open", help: "Stripe deliveries that are not DELIVERED, by state: PENDING, UNKNOWN or FAILED.",
			labels: []string{"state"},
			values: func(s *state.State, add addValue) {
				add(float64(s.Pushes.Pending), push.StatePending)
				add(float64(s.Pushes.Unknown), push.StateUnknown)
				add(float64(s.Pushes.Failed), push.StateFailed)
			}},
		plain("billing_oldest_open_push_seconds", "Age of the oldest Stripe delivery that is not DELIVERED.",
			func(s *state.State) float64 { return s.Pushes.OldestSeconds }),
		plain("billing_difference", "Meters of customers and months of the last 35 days whose last compared total at the billing "+
			"provider differs from the delivered amounts.",
			func(s *state.State) float64 { return float64(s.Pushes.Differences) }),
		plain("webhook_deliveries_pending", "Deliveries of webhooks that wait for their next attempt; 1000000: at least so many.",
			func(s *state.State) float64 { return float64(s.Webhooks.Pending) }),
		plain("webhook_oldest_due_seconds", "The longest time for which a webhook with a due delivery waits for an instance.",
			func(s *state.State) float64 { return s.Webhooks.OldestDueSeconds }),
		plain("quota_drift", "Accounts of limits that differ from the log, as of the last turn through all of them; entitlements "+
			"reconcile shows and repairs them.",
			func(s *state.State) float64 { return float64(s.Accounts.Differ) }),
		plain("quota_drift_compared", "Partitions of the log, of 32, whose accounts the last turn compared. In the others "+
			"entitlement_reads lags by more than 20,000 events, or its version does not count the same events as accounts.",
			func(s *state.State) float64 { return float64(s.Accounts.Compared) }),
		plain("quota_drift_age_seconds", "Time since the accounts of each partition were compared, of the partition for which it is "+
			"longest; since the start if they never were.",
			func(s *state.State) float64 { return s.Accounts.AgeSeconds }),
		plain("webhooks_failing", "Enabled webhooks whose last request failed.", func(s *state.State) float64 {
			return float64(s.Webhooks.Failing)
		}),
	}
}

// serverGauges show the state of the database server. A gauge whose value the service may not read, or that does not concern the
// server, is NaN, so that the series exists and compares with no threshold.
func serverGauges() []stateGauge {
	gauge := func(name, help string, value func(*state.Server) *float64) stateGauge {
		return plain(name, help, func(s *state.State) float64 {
			if s.Server == nil || value(s.Server) == nil {
				return math.NaN()
			}
			return *value(s.Server)
		})
	}
	var reasons [][]string
	for _, reason := range eventlog.EpochReasons() {
		reasons = append(reasons, []string{reason})
	}
	return []stateGauge{
		gauge("database_monitored", "1 if the service's login is a member of pg_monitor, else 0: then wal_bytes, standby_lag_bytes and "+
			"synchronous_standbys_missing are NaN.",
			func(s *state.Server) *float64 { return new(flag(s.Monitored)) }),
		gauge("wal_bytes", "Bytes of WAL that the server keeps.", func(s *state.Server) *float64 { return s.WALBytes }),
		gauge("wal_limit_bytes", "Bytes of WAL that the server should not exceed: max_wal_size, and the largest of wal_keep_size, "+
			"max_slot_wal_keep_size (4 GiB if unlimited) and max_wal_size.",
			func(s *state.Server) *float64 { return &s.WALLimit }),
		gauge("wal_archived_seconds", "Time since WAL was archived; NaN if archive_mode is off.",
			func(s *state.Server) *float64 { return s.ArchivedSeconds }),
		gauge("standby_lag_bytes", "WAL that the standby with the largest lag has not replayed; 0 without standbys.",
			func(s *state.Server) *float64 { return s.StandbyLagBytes }),
		gauge("synchronous_standbys_missing", "Synchronous standbys that synchronous_standby_names requires and that do not stream.",
			func(s *state.Server) *float64 { return s.MissingStandbys }),
		gauge("operator_key_expires_seconds", "Time until the next operator key expires; NaN if no key expires.",
			func(s *state.Server) *float64 { return s.KeyExpiresSeconds }),
		{name: "log_epoch_raised_seconds", help: "Time since an epoch was raised, by reason; NaN if it never was.",
			labels: []string{"reason"},
			before: math.NaN(),
			known:  reasons, values: func(s *state.State, add addValue) {
				if s.Server != nil {
					for reason, seconds := range s.Server.EpochRaisedSeconds {
						add(seconds, reason)
					}
				}
			}},
	}
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// ageGauges show how old the state is, and whether the identity holds.
func ageGauges(began time.Time, now func() time.Time) []stateGauge {
	since := func(at time.Time) float64 {
		if at.IsZero() {
			at = began
		}
		return max(0, now().Sub(at).Seconds())
	}
	return []stateGauge{
		plain("state_age_seconds", "Time since this instance read the state of the database, which the other gauges report; since the "+
			"start if it never could.",
			func(s *state.State) float64 { return since(s.ReadAt) }),
		{name: "identity_holds", help: "1 if every accepted event is aggregated, rejected, in flight or parked, else 0; NaN before the " +
			"first read.", before: math.NaN(),
			values: func(s *state.State, add addValue) {
				if s.Identity != nil {
					add(flag(s.Identity.Holds))
				}
			}},
		plain("identity_age_seconds", "Time since this instance compared them; since the start if it never could.",
			func(s *state.State) float64 {
				if s.Identity == nil {
					return since(time.Time{})
				}
				return since(s.Identity.ComparedAt)
			}),
	}
}
