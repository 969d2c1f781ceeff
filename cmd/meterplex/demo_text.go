package main

import (
	"fmt"
	"strings"

	"github.com/meterplex/meterplex/events"
)

const demoText = `
Meterplex is running.

  API           %[1]s/api/v1
  Reference     %[1]s/docs
  Metrics       %[1]s/metrics
  PostgreSQL    %[2]s
                event_log, outbox_events, usage_aggregates, dead_letter_events
  Kafka         %[3]s
  Data          %[4]s
  Tenant        Demo Inc., %[5]s
  API key       %[6]s
  Operator key  %[7]s

Counted so far:

%[8]s
Send an event, and read what it adds up to, in this order at once:

%[9]s
The same eventId again is a duplicate, and counts once. Ctrl-C stops everything
in order; what is recorded stays in %[4]s.
`

// demoScript needs only a POSIX shell and curl. The second request passes the
// position of the first one's event, and waits until it is counted.
const demoScript = `KEY=%[2]s
ANSWER=$(curl -sS %[1]s/api/v1/usage/events \
  -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' \
  -d '{"events":[{"eventId":"hello-'"$(date -u +%%s)-$$"'","feature":"api_calls","amount":1,"timestamp":"'"$(date -u +%%Y-%%m-%%dT%%H:%%M:%%SZ)"'"}]}')
echo "$ANSWER"
POSITION=${ANSWER#*\"position\":\"}; POSITION=${POSITION%%%%\"*}
curl -sS -H "Authorization: Bearer $KEY" -H 'Prefer: wait=10' \
  "%[1]s/api/v1/usage/aggregates?feature=api_calls&minPosition=$POSITION"; echo
`

// script returns the commands to paste, with the service's address and the tenant's key.
func (d *demo) script() string { return fmt.Sprintf(demoScript, d.at.URL, d.tenant.key) }

// text returns the demo's output: addresses, keys, figures and the script.
func (d *demo) text(figures []figure) string {
	var counted strings.Builder
	for _, f := range figures {
		fmt.Fprintf(&counted, "  %-14s %-9s %13d in %d events\n", f.Feature, f.PeriodKey, f.Amount, f.EventCount)
	}
	database := d.at.DatabaseURL
	if d.cfg.DatabaseURL != "" {
		database = maskURL(database)
	}
	return fmt.Sprintf(demoText, d.at.URL, database, d.kafka(), keptIn(d.cfg), d.tenantID, d.tenant.key,
		d.operatorKey(), counted.String(), d.script())
}

// operatorKey returns the key only if it was generated for this run.
func (d *demo) operatorKey() string {
	if !d.madeKey {
		return "the one that was given"
	}
	return d.cfg.BootstrapOperatorKey + " (until this run ends)"
}

func (d *demo) kafka() string {
	if len(d.at.Brokers) == 0 {
		return "none: PostgreSQL is the pipe"
	}
	var names []string
	for _, t := range events.Topics() {
		names = append(names, d.cfg.TopicPrefix+t.Name)
	}
	return strings.Join(d.at.Brokers, ", ") + "\n                " + strings.Join(names, ", ")
}
