// Package meterplex sends usage to Meterplex and asks its limits.
//
// Usage goes through a queue on disk: Record returns once the event is durable, a goroutine sends it, and the service counts it exactly
// once, also after crashes and outages. See README.md for a first event in ten lines, and sdk/queue.md for the queue.
package meterplex

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/meterplex/meterplex/sdk/go/internal/queue"
)

// Version is the version of the SDK.
const Version = "0.1.0"

// Durability is what an event survives once Record has returned.
type Durability string

const (
	Fsync Durability = "fsync" // the end of the machine; the default
	OS    Durability = "os"    // the end of the process, but not that of the machine
)

// Policy is the answer of Check if neither the service nor the cache has one.
type Policy string

const (
	Deny  Policy = "deny" // the default
	Allow Policy = "allow"
)

// Options change the defaults of New. The zero value is right for most.
type Options struct {
	// Tenant names the owner of the queue: a client with another Tenant does not send its events. Set it if several tenants share a
	// directory.
	Tenant     string
	Durability Durability
	// Memory keeps events in memory instead of dir; those that are not sent are lost at the end of the process. Rejected ones count for
	// QueueBytes until they are acknowledged.
	Memory bool

	BatchEvents int           // events in a batch, at most; default and maximum 1,000
	BatchBytes  int           // bytes of events in a batch, at most; default and maximum 1 MiB
	BatchAge    time.Duration // an event waits at most so long for others; default 1 s
	QueueBytes  int64         // the events on disk, at most; default 1 GiB. Then Record waits, and fails with queue_full

	// OnVerdict is called for each final verdict, at least once, one after the other; sending waits for it, so it must not Flush or Close.
	// Default: events that are not counted are logged.
	OnVerdict func(Event, Verdict)
	// OnError is called for failures of the sender. Default: they are logged.
	OnError func(*Error)
	// Logger is used by the default handlers. Default: slog.Default().
	Logger *slog.Logger

	AttemptTimeout time.Duration // of one request; default 30 s
	CheckTimeout   time.Duration // of Check; default 500 ms
	CheckPolicy    Policy        // of Check without an answer; default Deny
	MaxStale       time.Duration // how old an answer of Check's cache may be; default 60 s
	LongestWait    time.Duration // between attempts to send a batch; then it is marked as late, and unavailable is reported. Default 60 s
	KeyWait        time.Duration // between attempts after 401 and 403; default 60 s
	WarnAge        time.Duration // too_old is reported if an event waits longer; default 6 days (the service refuses usage after 7)

	// RootCAs are the certificates that the service's one is signed by. Default: those of the system.
	RootCAs *x509.CertPool
	// Transport replaces the client's own transport, e.g. to use a proxy. The environment is not read.
	Transport http.RoundTripper
}

// check refuses values that have no meaning.
func (o *Options) check() error {
	if o.Durability != "" && o.Durability != Fsync && o.Durability != OS || o.CheckPolicy != "" && o.CheckPolicy != Deny &&
		o.CheckPolicy != Allow {
		return invalid("invalid_argument", "Durability must be fsync or os, CheckPolicy deny or allow")
	}
	if min(o.BatchEvents, o.BatchBytes) < 0 || o.QueueBytes < 0 ||
		min(o.BatchAge, o.AttemptTimeout, o.CheckTimeout, o.MaxStale, o.LongestWait, o.KeyWait, o.WarnAge) < 0 {
		return invalid("invalid_argument", "A number or a time of Options is below 0")
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.Durability = or(o.Durability, Fsync)
	o.BatchEvents = min(or(o.BatchEvents, 1000), 1000)
	o.BatchBytes = min(or(o.BatchBytes, 1<<20), 1<<20)
	o.BatchAge = or(o.BatchAge, time.Second)
	o.QueueBytes = or(o.QueueBytes, 1<<30)
	o.Logger = or(o.Logger, slog.Default())
	o.AttemptTimeout = or(o.AttemptTimeout, 30*time.Second)
	o.CheckTimeout = or(o.CheckTimeout, 500*time.Millisecond)
	o.CheckPolicy = or(o.CheckPolicy, Deny)
	o.MaxStale = or(o.MaxStale, time.Minute)
	o.LongestWait = or(o.LongestWait, time.Minute)
	o.KeyWait = or(o.KeyWait, time.Minute)
	o.WarnAge = or(o.WarnAge, 6*24*time.Hour)
	if o.OnError == nil {
		o.OnError = func(e *Error) {
			o.Logger.Error("meterplex: "+e.Detail, "code", e.Code, "remedy", e.Remedy, "traceId", e.TraceID)
		}
	}
	return o
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Client sends usage and asks limits. It is safe for concurrent use. Make one for each tenant, and Close it.
type Client struct {
	options Options
	api     api
	dir     *queue.Dir // nil: in memory
	cache   checkCache

	ctx  context.Context // ends when the client stops
	stop context.CancelFunc
	done sync.WaitGroup // the goroutines

	wakeWriter, wakeSender, hurry signal
	unreadable                    map[events]time.Time // of the sender: until when a queue is not read
	toldOld                       time.Time            // of the sender

	mu       sync.Mutex
	pending  []*entry // in the order of Record
	closing  bool
	own      events   // written
	taken    []events // only sent: of dead clients, or written before a failure
	oldest   time.Time
	flushes  int           // running
	changed  chan struct{} // closed when events have left a queue
	stats    Stats
	rejected []Rejection // in memory
	// rejectedBytes is the size of their events, which count for QueueBytes.
	rejectedBytes int64
}

// events is a queue. One goroutine appends, one reads and settles.
type events interface {
	Append([][]byte) (int, error)
	Read(most, mostBytes int) ([][]byte, error)
	Settle([][]byte)
	Size() (events int, bytes int64)
	Settled() int64 // events
	Peek() []byte
	Lost() bool
	Renew()
	Close()
}

// signal wakes one goroutine.
type signal chan struct{}

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// New returns a client of the service at url, e.g. "https://meterplex.example.com", with a tenant's key. Its queue is in the directory dir,
// which is made if it does not exist; give each tenant a directory of its own, on a disk that survives restarts. Events that earlier
// clients left there are sent, too. Options may be nil.
func New(url, key, dir string, options *Options) (*Client, error) {
	if options == nil {
		options = &Options{}
	}
	if err := options.check(); err != nil {
		return nil, err
	}
	c := &Client{options: options.withDefaults(), changed: make(chan struct{}), unreadable: map[events]time.Time{},
		wakeWriter: make(signal, 1), wakeSender: make(signal, 1), hurry: make(signal, 1)}
	if err := c.api.init(url, key, &c.options); err != nil {
		return nil, err
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if options.Memory {
		c.own = &queue.Memory{}
	} else if err := c.open(dir); err != nil {
		return nil, err
	}
	c.done.Add(3)
	go c.write()
	go c.send()
	go c.keep()
	return c, nil
}

// open takes over the queues of dead clients in a directory, and makes one to write.
func (c *Client) open(path string) error {
	if path == "" {
		return invalid("invalid_argument",
			"The queue needs a directory; or set Options.Memory to lose unsent events at the end of the process")
	}
	c.dir = &queue.Dir{Path: path, Tenant: c.options.Tenant, Fsync: c.options.Durability != OS, OnDamage: func(d queue.Damage) {
		c.damaged(newError("damaged", nil, "%s", d.Detail))
	}}
	own, err := c.dir.New()
	if err != nil {
		return newError("queue_failed", err, "The queue cannot be made in %s", path)
	}
	c.own = own
	c.takeOver()
	return nil
}

// takeOver takes over the queues of dead clients.
func (c *Client) takeOver() {
	taken, err := c.dir.TakeOver()
	if err != nil {
		c.options.OnError(newError("queue_failed", err, "Queues of earlier clients in %s cannot be taken over", c.dir.Path))
	}
	c.mu.Lock()
	for _, q := range taken {
		c.taken = append(c.taken, q)
	}
	c.mu.Unlock()
	c.wakeSender.send()
}

// keep shows that the client lives, and looks for dead ones.
func (c *Client) keep() {
	defer c.done.Done()
	if c.dir == nil {
		return
	}
	const takeOverEvery = 6 // 30 s
	ticks := time.NewTicker(queue.RenewEvery)
	defer ticks.Stop()
	for n := 1; ; n++ {
		select {
		case <-c.ctx.Done():
			return
		case <-ticks.C:
		}
		for _, q := range c.queues() {
			q.Renew()
		}
		if n%takeOverEvery == 0 {
			c.takeOver()
		}
	}
}

// queues returns all queues, in the order in which they are sent.
func (c *Client) queues() []events {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(append([]events{}, c.taken...), c.own)
}

// Remaining are the events that are not sent yet.
type Remaining struct {
	Events int
	Oldest time.Duration // how old the oldest is, by its Timestamp
}

// Flush sends at once the events that wait, and returns when all have their verdict or ctx ends: how many events remain, and the age of the
// oldest.
func (c *Client) Flush(ctx context.Context) Remaining {
	c.mu.Lock()
	c.flushes++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.flushes--
		c.mu.Unlock()
	}()
	targets := map[events]int64{}
	for _, q := range c.queues() {
		n, _ := q.Size()
		targets[q] = q.Settled() + int64(n)
	}
	c.wakeSender.send()
	c.hurry.send()
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		if isReached(targets) || ctx.Err() != nil || c.ctx.Err() != nil {
			s := c.Stats()
			return Remaining{s.Waiting, s.Oldest}
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
	}
}

// isReached reports whether each queue has settled as many events as wanted, or has none any more.
func isReached(targets map[events]int64) bool {
	for q, wanted := range targets {
		if n, _ := q.Size(); n > 0 && q.Settled() < wanted {
			return false
		}
	}
	return true
}

// closeWithin bounds Close without a deadline.
const closeWithin = 10 * time.Second

// Close sends the events that wait, until ctx ends (without a deadline: 10 s at most), and ends the client. The next client of the
// directory sends the events that remain. Record fails with the code closed from now on.
func (c *Client) Close(ctx context.Context) Remaining {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, closeWithin)
		defer cancel()
	}
	c.mu.Lock()
	again := c.closing
	c.closing = true
	c.mu.Unlock()
	c.wakeWriter.send()
	remaining := c.Flush(ctx)
	c.stop()
	c.done.Wait()
	if !again {
		for _, q := range c.queues() {
			q.Close()
		}
		c.api.http.CloseIdleConnections()
	}
	return remaining
}

// SetKey replaces the key, e.g. after its rotation. Events that wait because the old one was refused are sent at once.
func (c *Client) SetKey(key string) error { return c.api.setKey(key) }

// Stats are figures of a client.
type Stats struct {
	Waiting      int           // events
	WaitingBytes int64         // their size in the queue
	Oldest       time.Duration // how old the first of them is, by its Timestamp
	// Verdicts since New.
	Accepted, Duplicates, Conflicts, Rejected int64
	Damaged                                   int64 // events and ranges of bytes that were moved to damaged/
	LastError                                 error // nil: none
}

// Stats returns the figures of now.
func (c *Client) Stats() Stats {
	queues := c.queues()
	c.mu.Lock()
	s := c.stats
	c.mu.Unlock()
	for _, q := range queues {
		n, bytes := q.Size()
		s.Waiting += n
		s.WaitingBytes += bytes
		if n > 0 {
			s.Oldest = max(s.Oldest, headOf(q.Peek()).age())
		}
	}
	return s
}

// report remembers an error of the sender and calls the handler.
func (c *Client) report(e *Error) {
	c.mu.Lock()
	c.stats.LastError = e
	c.mu.Unlock()
	c.options.OnError(e)
}

// damaged reports what was moved to damaged/.
func (c *Client) damaged(e *Error) {
	c.mu.Lock()
	c.stats.Damaged++
	c.mu.Unlock()
	c.report(e)
}
