package stripe

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/meterplex/meterplex/infra/deadline"
)

const (
	dialTimeout = 5 * time.Second
	// maxAnswer bounds the memory of one answer. A page of 100 meters has about 60 kB.
	maxAnswer = 1 << 20
	// maxRetryAfter bounds the wait that an answer asks for: a push is due within its day.
	maxRetryAfter = time.Hour
)

// exchange is what one request showed below stripe-go, which drops the status of answers that are not JSON.
type exchange struct {
	connected  atomic.Bool // a connection was open, so that the request may have reached Stripe
	status     int         // 0: no answer
	retryAfter time.Duration
	requestID  string
}

type exchangeKey struct{}

// begin returns the context of one request, and its exchange.
func begin(ctx context.Context) (context.Context, *exchange, context.CancelFunc) {
	x := &exchange{}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, exchangeKey{}, x), requestTimeout)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { x.connected.Store(true) }}), x,
		cancel
}

// transport records the exchange of each request.
type transport struct{ base *http.Transport }

func newTransport() *transport {
	return &transport{base: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		IdleConnTimeout:     90 * time.Second,
		MaxIdleConnsPerHost: 2,
	}}
}

// client follows no redirect: it would repeat the request, and the key, at another address.
func (t *transport) client() *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// RoundTrip leaves out the header in which stripe-go describes the machine, and sends no body to its end that is overdue.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Del("X-Stripe-Client-User-Agent")
	res, err := t.base.RoundTrip(deadline.Bound(req))
	if err != nil {
		return nil, err
	}
	if x, ok := req.Context().Value(exchangeKey{}).(*exchange); ok {
		x.status, x.requestID, x.retryAfter = res.StatusCode, res.Header.Get("Request-Id"), retryAfter(res.Header)
	}
	res.Body = bounded{io.LimitReader(res.Body, maxAnswer), res.Body}
	return res, nil
}

type bounded struct {
	io.Reader
	io.Closer
}

// retryAfter returns the wait that an answer asks for, in seconds or until a date, by the clock of the answer.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	seconds, err := strconv.ParseInt(text, 10, 32)
	wait := time.Duration(seconds) * time.Second
	if err != nil {
		until, err := http.ParseTime(text)
		now, errNow := http.ParseTime(h.Get("Date"))
		if err != nil || errNow != nil {
			return 0
		}
		wait = until.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}
