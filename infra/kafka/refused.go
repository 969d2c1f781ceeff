package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// refusal is the cause of a connection that the broker or the client refuses, so that repetitions do not help.
type refusal struct {
	reason string // names no host and no login
	look   string // the settings that may be wrong
}

// explained adds the settings to look at to the error of a refused connection. It returns other errors unchanged.
func explained(err error) error {
	r := refusalOf(err)
	if r.reason == "" || errors.As(err, new(*explainedError)) {
		return err
	}
	return &explainedError{err, r}
}

type explainedError struct {
	error
	refusal
}

func (e *explainedError) Error() string {
	return fmt.Sprintf("%s: %s (docs/how-to/kafka-access.md): %v", e.reason, e.look, e.error)
}

func (e *explainedError) Unwrap() error { return e.error }

// Reason is the cause for readers that may not see hosts and logins.
func (e *explainedError) Reason() string { return e.reason }

func refusalOf(err error) refusal {
	var (
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		header  tls.RecordHeaderError
		op      *net.OpError
		eof     *kgo.ErrFirstReadEOF
	)
	switch {
	case err == nil:
		return refusal{}
	case errors.Is(err, kerr.SaslAuthenticationFailed), errors.Is(err, sarama.ErrSASLAuthenticationFailed):
		return refusal{"authentication failed",
			"KAFKA_SASL_USERNAME or KAFKA_SASL_PASSWORD is wrong, or the user has no password for KAFKA_SASL_MECHANISM"}
	case errors.Is(err, kerr.UnsupportedSaslMechanism), errors.Is(err, sarama.ErrUnsupportedSASLMechanism):
		return refusal{"authentication failed", "the broker does not offer KAFKA_SASL_MECHANISM"}
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return refusal{"the broker's certificate is not trusted", "KAFKA_TLS_CA lacks the authority that signed it"}
	case errors.As(err, &host):
		return refusal{"the broker's certificate is for another host",
			"use its name in KAFKA_BROKERS and in the broker's advertised.listeners, or set KAFKA_TLS_SERVER_NAME"}
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return refusal{"the broker's certificate has expired or is not valid yet",
			"replace it on the broker; KAFKA_TLS_CA may have expired as well"}
	case errors.As(err, &invalid):
		return refusal{"the broker's certificate is not trusted", "it does not fit KAFKA_TLS_CA"}
	case errors.As(err, &header):
		return refusal{"the broker does not use TLS", "KAFKA_TLS_ENABLED is true, and the port of KAFKA_BROKERS has no TLS"}
	case errors.As(err, &op) && op.Op == "remote error":
		return refusal{"the client's certificate was refused",
			"KAFKA_TLS_CERT is absent, expired or signed by an authority that the broker does not trust"}
	case strings.Contains(err.Error(), "appear to be a tls alert record"):
		return refusal{"the broker does not answer as Kafka does", "the port of KAFKA_BROKERS may expect TLS: KAFKA_TLS_ENABLED is false"}
	case errors.As(err, &eof):
		return refusal{"the broker ends each connection",
			"KAFKA_TLS_ENABLED or KAFKA_SASL_MECHANISM does not fit the port of KAFKA_BROKERS"}
	}
	return refusal{}
}
