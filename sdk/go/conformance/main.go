// Command conformance does what the driver of the conformance cases asks (sdk/conformance/README.md), with the Go SDK.
package main

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/meterplex/meterplex/sdk/go"
)

// request has the members of all requests.
type request struct {
	ID            json.RawMessage
	Do            string
	URL, Key, Dir string
	Options       struct {
		Tenant, Durability, CA, Policy                               string
		Memory                                                       bool
		MaxEvents, MaxBytes                                          int
		QueueBytes                                                   int64
		MaxAgeMs, CheckMs, TimeoutMs, RetryMs, KeyRetryMs, WarnAgeMs int64
	}
	Event                                              json.RawMessage
	Events                                             json.RawMessage // also the number of events of a load
	Callers                                            int
	Prefix                                             string
	DeadlineMs                                         *int64
	EventID, ReservationID, Feature, Amount, Actual    string
	MinPosition, Tenant, Resource, OccurredAt, Decimal string
	Unit                                               string
	Scale                                              int
	TTLSeconds                                         int64
	Fail                                               bool
	Metadata                                           map[string]any
	Overage                                            string
	Query                                              map[string]json.RawMessage
	Wait                                               float64
}

type object map[string]any

// program is the state between requests.
type program struct {
	mu       sync.Mutex
	out      *json.Encoder
	client   *meterplex.Client
	verdicts []object
	errors   []object
}

func main() {
	p := &program{out: json.NewEncoder(os.Stdout)}
	p.out.SetEscapeHTML(false)
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			fmt.Fprintln(os.Stderr, "conformance:", err)
			os.Exit(2)
		}
		if r.Do == "new" { // before the requests that follow
			p.answer(&r)
			continue
		}
		running.Add(1)
		go func() {
			defer running.Done()
			p.answer(&r)
		}()
	}
}

func (p *program) answer(r *request) {
	answer, err := p.do(r)
	var raw json.RawMessage
	if whole, is := answer.(json.RawMessage); is && whole != nil {
		raw = whole
	} else if raw, _ = json.Marshal(answer); answer == nil {
		raw = []byte("{}")
	}
	members := map[string]json.RawMessage{}
	if failed := json.Unmarshal(raw, &members); failed != nil {
		err = errors.Join(err, failed)
	}
	if err != nil {
		members["error"], _ = json.Marshal(errorOf(err))
	}
	members["id"] = r.ID
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.out.Encode(members)
}

// errCallback is the failure of the work within a reservation.
var errCallback = errors.New("the work failed")

func errorOf(err error) object {
	var e *meterplex.Error
	switch {
	case errors.As(err, &e):
		return object{"code": e.Code, "status": e.Status, "detail": e.Detail, "remedy": e.Remedy, "traceId": e.TraceID, "errors": e.Errors,
			"eventId": e.ID}
	case errors.Is(err, errCallback):
		return object{"code": "callback_failed", "detail": err.Error()}
	}
	return object{"code": "invalid_argument", "detail": err.Error()}
}

func (p *program) do(r *request) (any, error) {
	ctx := context.Background()
	if r.DeadlineMs != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*r.DeadlineMs)*time.Millisecond)
		defer cancel()
	}
	switch r.Do {
	case "new":
		return nil, p.begin(r)
	case "record":
		return p.record(ctx, r)
	case "recordMany":
		return p.recordMany(ctx, r)
	case "load":
		return p.load(ctx, r)
	case "flush":
		return remaining(p.client.Flush(ctx)), nil
	case "close":
		return remaining(p.client.Close(ctx)), nil
	case "stats":
		return p.stats(), nil
	case "verdicts":
		return object{"verdicts": p.drain(&p.verdicts)}, nil
	case "errors":
		return object{"errors": p.drain(&p.errors)}, nil
	case "rejected":
		return p.rejected()
	case "acknowledge":
		return nil, p.client.Acknowledge(r.EventID)
	case "setKey":
		return nil, p.client.SetKey(r.Key)
	case "readQueue":
		return readQueue(r.Dir)
	case "fork":
		return object{"supported": false}, nil
	case "eventId", "amount", "canonical":
		return vector(r)
	}
	return p.ask(ctx, r)
}

func remaining(r meterplex.Remaining) object {
	return object{"remaining": r.Events, "oldestMs": r.Oldest.Milliseconds()}
}

func (p *program) begin(r *request) error {
	in, ms := r.Options, func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	o := meterplex.Options{Tenant: in.Tenant, Durability: meterplex.Durability(in.Durability), Memory: in.Memory, BatchEvents: in.MaxEvents,
		BatchBytes: in.MaxBytes,
		BatchAge:   ms(in.MaxAgeMs), QueueBytes: in.QueueBytes, CheckPolicy: meterplex.Policy(in.Policy), CheckTimeout: ms(in.CheckMs),
		AttemptTimeout: ms(in.TimeoutMs),
		LongestWait:    ms(in.RetryMs), KeyWait: ms(in.KeyRetryMs), WarnAge: ms(in.WarnAgeMs)}
	o.OnVerdict = func(_ meterplex.Event, v meterplex.Verdict) {
		p.keep(&p.verdicts, object{"eventId": v.EventID, "status": v.Status, "code": v.Code, "reason": v.Reason, "remedy": v.Remedy,
			"position": v.Position})
	}
	o.OnError = func(e *meterplex.Error) { p.keep(&p.errors, object{"code": e.Code, "detail": e.Detail}) }
	if in.CA != "" {
		pem, err := os.ReadFile(in.CA)
		if err != nil {
			return err
		}
		o.RootCAs = x509.NewCertPool()
		o.RootCAs.AppendCertsFromPEM(pem)
	}
	client, err := meterplex.New(r.URL, r.Key, r.Dir, &o)
	p.client = client
	return err
}

func (p *program) keep(list *[]object, one object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*list = append(*list, one)
}

func (p *program) drain(list *[]object) []object {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := append([]object{}, *list...)
	*list = nil
	return all
}

func (p *program) record(ctx context.Context, r *request) (any, error) {
	var e meterplex.Event
	if err := json.Unmarshal(r.Event, &e); err != nil {
		return nil, err
	}
	e, err := p.client.Record(ctx, e)
	if err != nil {
		return nil, err
	}
	return object{"eventId": e.EventID, "timestamp": e.Timestamp.Format(time.RFC3339Nano)}, nil
}

func (p *program) recordMany(ctx context.Context, r *request) (any, error) {
	var events []meterplex.Event
	if err := json.Unmarshal(r.Events, &events); err != nil {
		return nil, err
	}
	events, err := p.client.RecordMany(ctx, events)
	ids := []string{}
	for _, e := range events {
		ids = append(ids, e.EventID)
	}
	return object{"eventIds": ids}, err
}

func (p *program) load(ctx context.Context, r *request) (any, error) {
	n, err := strconv.Atoi(string(r.Events))
	if err != nil {
		return nil, err
	}
	start, numbers, failed := time.Now(), make(chan int), make(chan error, r.Callers)
	for range r.Callers {
		go func() {
			var err error
			for i := range numbers {
				_, one := p.client.Record(ctx, meterplex.Event{EventID: fmt.Sprint(r.Prefix, "-", i), Feature: r.Feature, Amount: 1})
				err = errors.Join(err, one)
			}
			failed <- err
		}()
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	for range r.Callers {
		err = errors.Join(err, <-failed)
	}
	return object{"ms": time.Since(start).Milliseconds()}, err
}

func (p *program) stats() object {
	s := p.client.Stats()
	last := ""
	var e *meterplex.Error
	if errors.As(s.LastError, &e) {
		last = e.Code
	}
	return object{"waiting": s.Waiting, "waitingBytes": s.WaitingBytes, "oldestMs": s.Oldest.Milliseconds(), "accepted": s.Accepted,
		"duplicates": s.Duplicates,
		"conflicts":  s.Conflicts, "rejected": s.Rejected, "damaged": s.Damaged, "lastError": last}
}

func (p *program) rejected() (any, error) {
	list := []object{}
	for r, err := range p.client.Rejected() {
		if err != nil {
			return nil, err
		}
		event, err := r.Event.Canonical()
		if err != nil {
			return nil, err
		}
		v := r.Verdict
		list = append(list, object{"event": json.RawMessage(event), "status": v.Status, "code": v.Code, "reason": v.Reason,
			"remedy": v.Remedy})
	}
	return object{"events": list}, nil
}
