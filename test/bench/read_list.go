package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// period is the month of all usage of a long history.
const period = "2026-01"

// pageSize is the number of entries in a page.
const pageSize = 100

// read is a request that is sent for random places.
type read struct {
	name string
	path func(p *place) string
	// check refuses an answer that is not the expected one: an empty page would be fast.
	check func(p *place, body []byte) error
}

const figurePath = "feature=" + feature + "&period=" + period

// groups returns the reads of the figures B13 and P12.
func (h *longHistory) groups(size int) []readGroup {
	live := read{"live figure", fixed("/usage/aggregates?" + figurePath), entries(1, nil)}
	return []readGroup{
		{figure: figureB13Explain(size), beside: &live, reads: explainReads()},
		{figure: figureB13AsOf(size), beside: &live, reads: asOfReads()},
		{figure: figureP12Lists(size), beside: &live, reads: listReads()},
		{figure: figureP12Event(size), limitKey: operatorKey, reads: eventReads()},
	}
}

func explainReads() []read {
	const path = "/usage/aggregates/explain?" + figurePath + "&limit=100"
	return []read{
		{"explanation, first page", fixed(path), entries(pageSize, nil)},
		{"explanation, page at a random place", func(p *place) string {
			return path + "&cursor=" + p.explainCursor()
		}, entries(pageSize, func(p *place, e entry) bool {
			return e.RunningTotal == json.Number(fmt.Sprint(p.sumBefore()+p.history.shape.amount(1)))
		})},
	}
}

func asOfReads() []read {
	const path = "/usage/aggregates?" + figurePath
	return []read{
		{"figure as of a position", func(p *place) string {
			return path + "&asOfPosition=" + p.recorded.String()
		}, entries(1, func(p *place, e entry) bool {
			return e.EventCount == p.counted()
		})},
		{"figure as of a time", func(p *place) string {
			return path + "&asOf=" + url.QueryEscape(p.at.UTC().Format(time.RFC3339Nano))
		}, answered},
	}
}

func listReads() []read {
	const path = "/usage/events?limit=100"
	rejected := func(_ *place, e entry) bool { return e.Status == "REJECTED" }
	below := func(p *place) string { return path + "&cursor=" + p.listCursor("") }
	return []read{
		{"usage events, first page", fixed(path), entries(pageSize, nil)},
		{"usage events, page at a random place", below, entries(pageSize, nil)},
		{"rejected usage events, first page", fixed(path + "&status=REJECTED"), entries(pageSize, rejected)},
		{"rejected usage events, page at a random place", func(p *place) string {
			return path + "&status=REJECTED&cursor=" + p.listCursor("REJECTED")
		}, entries(pageSize, rejected)},
	}
}

func eventReads() []read {
	return []read{
		{"receipt", func(p *place) string { return "/usage/events/" + p.eventID() }, receipted},
		{"lineage", func(p *place) string { return "/events/" + p.recorded.String() + "/lineage" }, lineaged},
		{"stream of an event", func(p *place) string { return "/events?limit=100&stream=usage/" + p.eventID() }, entries(2, nil)},
	}
}

func fixed(path string) func(*place) string { return func(*place) string { return path } }

// entry holds the members of entries that are checked.
type entry struct {
	Status       string
	EventCount   int64
	RunningTotal json.Number
}

var errNotTheRead = errors.New("it is not the answer for this place")

// entries checks the number of entries, and the first one.
func entries(n int, first func(p *place, e entry) bool) func(p *place, body []byte) error {
	return func(p *place, body []byte) error {
		var page struct{ Data []entry }
		if err := json.Unmarshal(body, &page); err != nil {
			return err
		}
		if len(page.Data) != n {
			return fmt.Errorf("%d entries instead of %d", len(page.Data), n)
		}
		if first != nil && !first(p, page.Data[0]) {
			return fmt.Errorf("%w: %+v", errNotTheRead, page.Data[0])
		}
		return nil
	}
}

// answered checks that an answer is true at a position.
func answered(_ *place, body []byte) error {
	var answer struct{ AsOfPosition string }
	if err := json.Unmarshal(body, &answer); err != nil || answer.AsOfPosition == "" {
		return errors.Join(errNotTheRead, err)
	}
	return nil
}

func receipted(p *place, body []byte) error {
	var receipt struct{ EventID, Status string }
	want := "AGGREGATED"
	if p.rejected() {
		want = "REJECTED"
	}
	if err := json.Unmarshal(body, &receipt); err != nil || receipt.EventID != p.eventID() || receipt.Status != want {
		return errors.Join(errNotTheRead, err)
	}
	return nil
}

// lineaged checks that a lineage holds the event and its verdict.
func lineaged(_ *place, body []byte) error {
	var lineage struct{ Nodes []json.RawMessage }
	if err := json.Unmarshal(body, &lineage); err != nil || len(lineage.Nodes) != 2 {
		return errors.Join(errNotTheRead, err)
	}
	return nil
}
