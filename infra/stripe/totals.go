package stripe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	stripego "github.com/stripe/stripe-go/v84"
)

const (
	// metersFor is how long the list of meters is used. Meters change by hand.
	metersFor = 10 * time.Minute
	// missingFor is how long a missing meter stays missing without another look.
	missingFor = time.Minute
	pageSize   = 100
	// maxPages bounds the loops over pages.
	maxPages = 100
)

// meter is the part of a Stripe meter that totals need.
type meter struct {
	ID                 string `json:"id"`
	EventName          string `json:"event_name"`
	Status             string `json:"status"`
	DefaultAggregation struct {
		Formula string `json:"formula"`
	} `json:"default_aggregation"`
	EventTimeWindow string `json:"event_time_window"`
}

// page is a page of a Stripe list.
type page[T any] struct {
	stripego.APIResource
	Object  string `json:"object"`
	HasMore bool   `json:"has_more"`
	Data    []T    `json:"data"`
}

// summary is the total of a window. Its number is decoded as text: no float is involved.
type summary struct {
	ID              string      `json:"id"`
	AggregatedValue json.Number `json:"aggregated_value"`
}

// Total returns the amount that Stripe counted for a customer in [from, to). Both are whole minutes, as Stripe's API requires. Stripe adds
// up asynchronously: an event of the last minutes may be missing.
func (p *Provider) Total(ctx context.Context, customer, event string, from, to time.Time) (*big.Int, error) {
	if from.Unix()%60 != 0 || to.Unix()%60 != 0 || from.Nanosecond() != 0 || to.Nanosecond() != 0 || !from.Before(to) {
		return nil, fmt.Errorf("totals of Stripe need a window of whole minutes, not %s to %s", from.UTC().Format(time.RFC3339Nano),
			to.UTC().Format(time.RFC3339Nano))
	}
	m, err := p.meter(ctx, event)
	if err != nil {
		return nil, err
	}
	total, after := new(big.Int), ""
	for range maxPages {
		var got page[summary]
		query := list(after)
		query.Set("customer", customer)
		query.Set("start_time", strconv.FormatInt(from.Unix(), 10))
		query.Set("end_time", strconv.FormatInt(to.Unix(), 10))
		err := p.read(ctx, stripego.FormatURLPath("/v1/billing/meters/%s/event_summaries", m.ID), query, &got)
		if err == nil && got.Object != "list" {
			err = errors.New("the answer is no list")
		}
		for _, s := range got.Data {
			if err == nil {
				var n *big.Int
				if n, err = integer(s.AggregatedValue); err == nil {
					total.Add(total, n)
				}
			}
			after = s.ID
		}
		if err != nil {
			return nil, fmt.Errorf("read Stripe's total of meter %s for customer %s: %w", m.ID, customer, err)
		}
		if !got.HasMore || len(got.Data) == 0 {
			return total, nil
		}
	}
	return nil, fmt.Errorf("read Stripe's total of meter %s for customer %s: more than %d pages", m.ID, customer, maxPages)
}

// meter returns the meter of an event name.
func (p *Provider) meter(ctx context.Context, event string) (meter, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, found := p.meters[event]
	age := p.now().Sub(p.readAt)
	if p.meters == nil || age > metersFor || !found && age > missingFor {
		meters, err := p.readMeters(ctx)
		if err != nil {
			return meter{}, fmt.Errorf("list Stripe's meters: %w", err)
		}
		p.meters, p.readAt = meters, p.now()
		m, found = meters[event]
	}
	if !found {
		return meter{}, fmt.Errorf("no meter of Stripe has the event name %s", event)
	}
	if m.DefaultAggregation.Formula != "sum" || m.EventTimeWindow != "" {
		return meter{}, fmt.Errorf("meter %s of the event %s has the formula %q and the time window %q: pushes need the formula sum "+
			"and no window", m.ID, event, m.DefaultAggregation.Formula, m.EventTimeWindow)
	}
	return m, nil
}

// readMeters lists all meters. One event name has one active meter; of inactive ones the newest, which Stripe lists first.
func (p *Provider) readMeters(ctx context.Context) (map[string]meter, error) {
	meters, after := map[string]meter{}, ""
	for range maxPages {
		var got page[meter]
		err := p.read(ctx, "/v1/billing/meters", list(after), &got)
		if err == nil && got.Object != "list" {
			err = errors.New("the answer is no list")
		}
		if err != nil {
			return nil, err
		}
		for _, m := range got.Data {
			if old, known := meters[m.EventName]; !known || old.Status != "active" && m.Status == "active" {
				meters[m.EventName] = m
			}
			after = m.ID
		}
		if !got.HasMore || len(got.Data) == 0 {
			return meters, nil
		}
	}
	return nil, fmt.Errorf("more than %d pages", maxPages)
}

func list(after string) url.Values {
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	if after != "" {
		query.Set("starting_after", after)
	}
	return query
}

// read gets one page. Its error has Stripe's words, and no secret. Backend.Call panics on parameters of lists.
func (p *Provider) read(ctx context.Context, path string, query url.Values, to stripego.LastResponseSetter) error {
	within, x, cancel := begin(ctx)
	defer cancel()
	err := p.backend.CallRaw(http.MethodGet, path, p.key(), []byte(query.Encode()), &stripego.Params{Context: within}, to)
	if err == nil && x.status/100 == 2 {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	text := errorText(err)
	if e := (*stripego.Error)(nil); errors.As(err, &e) {
		if refusesKey(x.status, e) {
			return errors.New(p.clean(keyRefused(x.status, e), maxReason))
		}
		text = e.Msg
	}
	return fmt.Errorf("status %d: %s", x.status, p.clean(text, maxReason))
}

// number is a JSON number of a bounded size: an exponent must not fill the memory.
var number = regexp.MustCompile(`^-?[0-9]{1,200}(\.[0-9]{1,200})?([eE][+-]?[0-9]{1,2})?$`)

// integer returns the value of a JSON number, which may be written as 3.0 or 3e5.
func integer(n json.Number) (*big.Int, error) {
	if number.MatchString(n.String()) {
		if value, ok := new(big.Rat).SetString(n.String()); ok && value.IsInt() {
			return value.Num(), nil
		}
	}
	return nil, fmt.Errorf("the total %.100q is not an integer", n.String())
}
