package tracing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
)

// ErrEnvironment is in errors of variables with which an instance does not start.
var ErrEnvironment = errors.New("the environment of the exporter is invalid")

// CheckCollector sends an export without spans, with the environment of an instance, and returns the endpoint. No value
// of a header is in its error.
func CheckCollector(ctx context.Context) (endpoint string, err error) {
	if endpoint, err = checkEnvironment(os.Getenv); err != nil {
		return "", fmt.Errorf("%w: %w", ErrEnvironment, err)
	}
	client := otlptracehttp.NewClient(otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}))
	if err = client.Start(ctx); err == nil {
		err = errors.Join(client.UploadTraces(ctx, nil), client.Stop(ctx))
	}
	if err != nil {
		err = errors.New(withoutHeaders(err.Error(), os.Getenv))
	}
	return endpoint, err
}

// maxCollectorError bounds the text of a collector's refusal.
const maxCollectorError = 300

// withoutHeaders removes the values of headers, which a collector may repeat in its answer.
func withoutHeaders(text string, env func(string) string) string {
	for _, name := range headerVariables() {
		for header := range strings.SplitSeq(env(name), ",") {
			_, value, _ := strings.Cut(header, "=")
			plain, _ := url.PathUnescape(value)
			for _, secret := range []string{value, plain, strings.TrimSpace(plain)} {
				if secret != "" {
					text = strings.ReplaceAll(text, secret, "********")
				}
			}
		}
	}
	return strings.ToValidUTF8(text[:min(len(text), maxCollectorError)], "")
}

func headerVariables() []string {
	return []string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"}
}

// checkFiles reads the files of TLS. The library would log that one cannot be used, and connect without it.
func checkFiles(env func(string) string) error {
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"} {
		if name := prefix + "CERTIFICATE"; env(name) != "" {
			text, err := os.ReadFile(env(name))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if !x509.NewCertPool().AppendCertsFromPEM(text) {
				return fmt.Errorf("%s: the file holds no certificate in PEM form", name)
			}
		}
		cert, key := env(prefix+"CLIENT_CERTIFICATE"), env(prefix+"CLIENT_KEY")
		if cert == "" && key == "" {
			continue
		}
		if cert == "" || key == "" {
			return fmt.Errorf("%[1]sCLIENT_CERTIFICATE and %[1]sCLIENT_KEY: set both, or leave both out", prefix)
		}
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			return fmt.Errorf("%[1]sCLIENT_CERTIFICATE, %[1]sCLIENT_KEY: %[2]w", prefix, err)
		}
	}
	return nil
}
