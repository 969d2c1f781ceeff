package node

import (
	"context"
	"log/slog"
	nethttp "net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/tracing"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/infra/webhook"
	"github.com/meterplex/meterplex/projections/consume"
)

// startTraces begins to export spans if METERPLEX_TRACE_RATIO is above 0. Otherwise n.traces stays nil, and no hook is installed.
func (n *Node) startTraces(ctx context.Context) (err error) {
	count := n.metrics.Spans(tracing.Results())
	if n.cfg.TraceRatio == 0 {
		return nil
	}
	n.traces, err = tracing.Start(ctx, tracing.Config{Ratio: n.cfg.TraceRatio, Instance: n.instance, Version: n.commit, Logger: n.logger,
		Count: count})
	if err == nil {
		if n.stripe != nil {
			n.stripe.Attempt = n.traces.Attempt
		}
		n.logger = slog.New(tracing.Logs(n.logger.Handler()))
	}
	return err
}

// checkTraces fails if the exporter of traces is needed, and its environment is invalid.
func checkTraces(cfg config.Config) error {
	if cfg.TraceRatio == 0 {
		return nil
	}
	return tracing.CheckEnvironment()
}

func (n *Node) stopTraces() {
	if n.traces != nil {
		n.traces.Stop()
	}
}

// tracePool traces the statements of a pool that will be opened.
func (n *Node) tracePool(c *postgres.Config) {
	if n.traces != nil {
		c.Tracer = n.traces.Statements()
	}
}

// sampleBy lets all instances on a log sample the same traces. No answer to a tenant has the log's id.
func (n *Node) sampleBy(log uuid.UUID) {
	if n.traces != nil {
		n.traces.UseSecret(log)
	}
}

func (n *Node) traceLog(c *eventlog.Config) {
	if n.traces != nil {
		c.Appended = n.traces.Appended
	}
}

func (n *Node) traceConsumer(r *consume.Runner) {
	if n.traces != nil {
		r.Trace = n.traces.Batch
	}
}

// tracedRouter is the option of routers whose messages hold records.
func (n *Node) tracedRouter() []watermill.Option {
	if n.traces == nil {
		return nil
	}
	return []watermill.Option{watermill.Traced(n.traces.Records)}
}

func (n *Node) traceAPI(s *http.Server) {
	if n.traces != nil {
		s.Spans = n.traces
	}
}

func (n *Node) traceWebhooks(c *webhook.Config) {
	if n.traces != nil {
		c.Attempt = n.traces.Attempt
	}
}

// traceRequests traces the requests of a server of the API, which knows its own handler by its type.
func (n *Node) traceRequests(server *nethttp.Server) {
	if n.traces != nil {
		server.Handler = n.traces.Handler(server.Handler)
	}
}
