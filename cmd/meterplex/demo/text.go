package demo

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/events"
)

const summary = `
Meterplex is running.

  Console       %[11]s
  API           %[1]s/api/v1
  Reference     %[1]s/docs
  Metrics       %[10]s/metrics
  PostgreSQL    %[2]s
                reporting_usage, reporting_dead_letters, event_log, outbox_events
  Kafka         %[3]s
  Data          %[4]s
  Tenant        Demo Inc., %[5]s
  API key       %[6]s
  Operator key  %[7]s
  Proof         meterplex verify --config %[12]s (doctor likewise)
%[13]s
Counted so far:

%[8]s
Send an event, and read the figure that counts it:

%[9]s
The same eventId again is a duplicate, and counts once. Ctrl-C stops all of it
in order; recorded events stay in %[4]s.
`

// script needs only a POSIX shell and curl. The second request passes the
// position of the first one's event, and waits until it is counted.
const script = `KEY=%[2]s
ANSWER=$(curl -sS %[1]s/api/v1/usage/events \
  -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' \
  -d '{"events":[{"eventId":"hello-'"$(date -u +%%s)-$$"'","feature":"api_calls","amount":1,"timestamp":"'"$(date -u +%%Y-%%m-%%dT%%H:%%M:%%SZ)"'"}]}')
echo "$ANSWER"
POSITION=${ANSWER#*\"position\":\"}; POSITION=${POSITION%%%%\"*}
curl -sS -H "Authorization: Bearer $KEY" -H 'Prefer: wait=10' \
  "%[1]s/api/v1/usage/aggregates?feature=api_calls&minPosition=$POSITION"; echo
`

// script returns the commands to paste, with the service's address and the tenant's key.
func (d *Demo) script() string { return fmt.Sprintf(script, d.at.URL, d.tenant.Key) }

// text returns the demo's output: addresses, a link to sign in, keys, figures and the script.
func (d *Demo) text(figures []figure, link string) string {
	var counted strings.Builder
	for _, f := range figures {
		fmt.Fprintf(&counted, "  %-14s %-9s %13d in %d events\n", f.Feature, f.PeriodKey, f.Amount, f.EventCount)
	}
	database := d.at.DatabaseURL
	if !d.ShowPassword {
		database = config.MaskURL(database) + " (--show-password)"
	}
	return fmt.Sprintf(summary, d.at.URL, database, d.kafka(), storageOf(d.Config), d.tenantID, d.tenant.Key,
		d.operatorKey(), counted.String(), d.script(), cmp.Or(d.at.AdminURL, d.at.URL), d.console(link), d.settingsFile(), d.stripe())
}

// signInLink opens a link to the console; "" if the service has none.
func (d *Demo) signInLink(ctx context.Context) (string, error) {
	if d.at.SignInLink == nil {
		return "", nil
	}
	return d.at.SignInLink(ctx)
}

func (d *Demo) console(link string) string {
	if link == "" {
		return "off"
	}
	return d.at.URL + "/console\n  Sign in once  " + link + "\n                (for 15 minutes; afterwards with the operator key)"
}

// operatorKey returns the key only if it was generated for this run.
func (d *Demo) operatorKey() string {
	if !d.madeKey {
		return "the one that was given"
	}
	return d.Config.BootstrapOperatorKey + " (until this run ends)"
}

func (d *Demo) stripe() string {
	if !d.FakeStripe {
		return ""
	}
	return "  Stripe        " + d.Config.StripeURL + ", a fake: its counts are shown below\n"
}

func (d *Demo) kafka() string {
	if len(d.at.Kafka.Brokers) == 0 {
		return "not used: PostgreSQL is the pipe"
	}
	var names []string
	for _, t := range events.Topics() {
		names = append(names, d.Config.TopicPrefix+t.Name)
	}
	brokers := strings.Join(d.at.Kafka.Brokers, ", ")
	if len(d.Config.Kafka.Brokers) == 0 {
		brokers += " (SASL PLAIN, the password of meterplex is in " + filepath.Join(d.Config.DataDir, "kafka", "passwords.json") + ")"
	}
	return brokers + "\n                " + strings.Join(names, ", ")
}
