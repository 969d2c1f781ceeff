// Package tracing makes OpenTelemetry spans of requests, events, batches and statements, and exports them by OTLP over
// HTTP. An instance without traces has no Tracing, and installs none of its hooks. The package records no header, no
// payload, no parameter of a statement and no text of an error: collectors are read by more people than the database.
package tracing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Config describes the instance whose spans are exported. The exporter is configured by the standard's variables
// OTEL_EXPORTER_OTLP_*, the queue before it by OTEL_BSP_*, and the resource by OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES.
type Config struct {
	Ratio    float64 // of the traces that are sampled, above 0
	Instance string
	Version  string
	Logger   *slog.Logger
	// Count is called with the number of spans that ended (queued), that the collector accepted (exported) and that it
	// did not (failed). Those that ended and are in neither were dropped, or are in the queue. May be nil.
	Count func(result string, spans int)
}

// The results of Config.Count.
const (
	Queued   = "queued"
	Exported = "exported"
	Failed   = "failed"
)

// Results lists the results of Config.Count.
func Results() []string { return []string{Queued, Exported, Failed} }

// Tracing makes the spans of an instance.
type Tracing struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	sampler  sampler
	logger   *slog.Logger
}

// DefaultEndpoint is that of the standard.
const DefaultEndpoint = "http://localhost:4318"

// Start begins to export spans. It fails if the environment of the exporter is invalid, and does not wait for the
// collector.
func Start(ctx context.Context, cfg Config) (*Tracing, error) {
	endpoint, err := checkEnvironment(os.Getenv)
	if err != nil {
		return nil, err
	}
	to, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("create the exporter of traces: %w", err)
	}
	t, err := start(ctx, cfg, to)
	if err == nil {
		cfg.Logger.Info("traces are exported", "ratio", cfg.Ratio, "to", endpoint)
	}
	return t, err
}

// start exports to an exporter.
func start(ctx context.Context, cfg Config, to sdk.SpanExporter) (*Tracing, error) {
	if cfg.Count == nil {
		cfg.Count = func(string, int) {}
	}
	described, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attribute.String("service.name", "meterplex"),
		attribute.String("service.version", cfg.Version), attribute.String("service.instance.id", cfg.Instance)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	of := newSampler(cfg.Ratio)
	// The queue drops spans while it is full: no request waits for the collector.
	queue := sdk.NewBatchSpanProcessor(&exporter{SpanExporter: to, logger: cfg.Logger, count: cfg.Count})
	provider := sdk.NewTracerProvider(sdk.WithSampler(of), sdk.WithIDGenerator(spanIDs{}), sdk.WithResource(described),
		sdk.WithSpanProcessor(counted{queue, cfg.Count}))
	return &Tracing{provider: provider, tracer: provider.Tracer("meterplex"), sampler: of, logger: cfg.Logger}, nil
}

// UseSecret sets the secret by which traces are sampled: the same of all instances, which no client knows.
func (t *Tracing) UseSecret(secret uuid.UUID) { t.sampler.use(secret) }

// stopTime bounds the export of the last spans at a stop, so that a collector that does not answer delays it little.
const stopTime = 2 * time.Second

// Stop exports the spans that wait, as far as the collector accepts them within 2 s.
func (t *Tracing) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.logger.Warn("the last spans were not exported", "error", err)
	}
}

// CheckEnvironment fails if Start would, so that an instance can refuse to start before it changes a database.
func CheckEnvironment() error {
	_, err := checkEnvironment(os.Getenv)
	return err
}

// checkEnvironment returns the endpoint of the exporter. The library would log an invalid variable, with its value, and
// use its default.
func checkEnvironment(env func(string) string) (endpoint string, err error) {
	for _, name := range headerVariables() {
		for header := range strings.SplitSeq(env(name), ",") {
			key, value, found := strings.Cut(header, "=")
			if _, err := url.PathUnescape(value); env(name) != "" && (!found || strings.TrimSpace(key) == "" || err != nil) {
				return "", fmt.Errorf("%s: must be name=value pairs, separated by commas", name)
			}
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if v := env(name); v != "" && v != "http/protobuf" {
			return "", fmt.Errorf("%s: is %.40q, and this service only exports by http/protobuf", name, v)
		}
	}
	endpoint = DefaultEndpoint
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} { // the second has priority
		v := env(name)
		if v == "" {
			continue
		}
		u, err := url.Parse(v)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return "", fmt.Errorf("%s: must be http://host:port or https://host:port; a collector's key belongs in "+
				"OTEL_EXPORTER_OTLP_HEADERS", name)
		}
		endpoint = u.Scheme + "://" + u.Host
	}
	return cmp.Or(endpoint, DefaultEndpoint), checkFiles(env)
}
