package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/deadline"
)

var _ webhooks.Sender = (*Sender)(nil)

const (
	// Timeout bounds a request, from the look-up of the name to the header of the answer.
	Timeout = 15 * time.Second
	// maxAnswer bounds the bytes of an answer's body that are read: only its status counts, and a read body lets the connection be used
	// again.
	maxAnswer = 4 << 10
	// maxAnswerHeader bounds the bytes of an answer's header.
	maxAnswerHeader = 16 << 10
	// idleTime is how long an unused connection is kept.
	idleTime = 30 * time.Second
)

// Config configures a sender.
type Config struct {
	Addresses webhook.Addresses
	Timeout   time.Duration // 0: Timeout
	Resolver  *net.Resolver // nil: the default one
	// Attempt begins the span of a request that delivers an event, and returns the function that ends it with the status of the answer; 0:
	// no answer. Nil: without traces.
	Attempt func(ctx context.Context, name string, of events.TracedEvent) (context.Context, func(status int))
}

// Sender implements webhooks.Sender. It follows no redirect and uses no proxy: each would reach an address that was not checked.
type Sender struct {
	timeout time.Duration
	attempt func(ctx context.Context, name string, of events.TracedEvent) (context.Context, func(status int))
	clients map[route]*http.Client
}

// NewSender returns a sender. Close it.
func NewSender(c Config) *Sender {
	s := &Sender{timeout: cmp.Or(c.Timeout, Timeout), attempt: c.Attempt, clients: map[route]*http.Client{}}
	for _, r := range []route{{}, {plain: true}, {operators: true}, {plain: true, operators: true}} {
		s.clients[r] = newClient(&c, r)
	}
	return s
}

// route is a way to an endpoint. Each has its own client: the connection of one that may reach a private network is not used by another.
type route struct {
	plain     bool // over http
	operators bool // an operator set the URL
}

// errAddress is the refusal of an address at the dial.
var errAddress = errors.New("the address is not allowed")

// newClient returns a client for one route. The address is checked when the socket is made, after the name was resolved: the answer to a
// second look-up is checked too.
func newClient(c *Config, r route) *http.Client {
	addresses := c.Addresses.Of(r.operators)
	dialer := &net.Dialer{Timeout: cmp.Or(c.Timeout, Timeout), Resolver: c.Resolver,
		Control: func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil || !addresses.Permits(to.Addr(), r.plain) {
				return errAddress
			}
			return nil
		}}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
			MaxResponseHeaderBytes: maxAnswerHeader, MaxIdleConnsPerHost: 1, MaxIdleConns: 100, IdleConnTimeout: idleTime,
			DisableCompression: true,
		},
	}
}

// Close closes the idle connections.
func (s *Sender) Close() {
	for _, client := range s.clients {
		client.CloseIdleConnections()
	}
}

// Send implements webhooks.Sender.
func (s *Sender) Send(ctx context.Context, m webhook.Message) webhook.Result {
	began := time.Now()
	of, end := events.TracedEvent{Trace: m.Trace, EventID: m.EventID}, func(int) {}
	if s.attempt != nil {
		ctx, end = s.attempt(ctx, "send webhook", of)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	status, err := s.send(ctx, &m, of.TraceParent())
	end(status)
	result := webhook.Result{Status: status, Duration: time.Since(began)}
	if err != nil {
		result.Error = reasonOf(err, s.timeout)
	}
	return result
}

func (s *Sender) send(ctx context.Context, m *webhook.Message, traceParent string) (status int, err error) {
	id := m.EventID.String()
	signature, err := sign(m.Secrets, id, m.At, m.Body)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, bytes.NewReader(m.Body))
	if err != nil {
		return 0, err
	}
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"Meterplex (webhooks)"},
		http.CanonicalHeaderKey(headerID): {id}, http.CanonicalHeaderKey(headerTimestamp): {strconv.FormatInt(m.At.Unix(), 10)},
		http.CanonicalHeaderKey(headerSignature): {signature},
	}
	if traceParent != "" { // not signed: proxies of the receiver may replace it
		req.Header.Set(events.HeaderTrace, traceParent)
	}
	answer, err := s.clients[route{plain: req.URL.Scheme == "http", operators: m.Operators}].Do(deadline.Bound(req))
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer) // only the status counts
	return answer.StatusCode, nil
}

// reasonOf returns the text of a failure that the tenant reads. It names no address and no text of another server: a webhook must not
// reveal the network that the service runs in.
func reasonOf(err error, timeout time.Duration) string {
	var (
		name      *net.DNSError
		wrapped   *url.Error
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		record    tls.RecordHeaderError
	)
	switch {
	case errors.Is(err, errAddress):
		return "the address of the host is private or not allowed"
	case errors.Is(err, errSecret):
		return errSecret.Error()
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &wrapped) && wrapped.Timeout():
		return fmt.Sprintf("no answer within %s", timeout)
	case errors.Is(err, context.Canceled):
		return "the instance stopped"
	case errors.As(err, &name):
		return "the name of the host cannot be resolved"
	case errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid), errors.As(err, &verify), errors.As(err, &record):
		return "the TLS connection failed: the certificate is not valid for the host"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	default:
		return "the connection failed or was closed before an answer"
	}
}
