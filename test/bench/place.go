package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/meterplex/meterplex/events"
)

// longHistory is the history of one tenant with one figure.
type longHistory struct {
	*historyWriter
	began, ended time.Time // when it was written
	explained    []string  // place of the figure's explanation behind its first page, as in its cursor
}

// LeastHistory is the least size of a history: every place needs full pages on both sides.
const LeastHistory = 20_000

// firstPlace is the first run of a place: rejections for more than a page are before it.
const firstPlace = 11

// place is an event of a long history.
type place struct {
	history  *longHistory
	run, n   int64
	recorded events.Position
	at       time.Time // while the history was written
}

// place draws a place with pages before and behind it.
func (h *longHistory) place(random *rand.Rand) *place {
	p := &place{history: h, run: firstPlace + random.Int64N(h.runs-firstPlace-2), n: 1 + random.Int64N(historyRun)}
	p.recorded = events.Position{Partition: h.tenant.partition, Number: h.ends(p.run).head + p.n}
	p.at = h.began.Add(time.Duration(random.Int64N(int64(h.ended.Sub(h.began)))))
	return p
}

func (p *place) eventID() string { return fmt.Sprintf("h-%d-%d", p.history.before+p.run, p.n) }

// rejected reports whether the event was rejected.
func (p *place) rejected() bool { return p.n%int64(p.history.shape.rejects) == 0 }

// counted returns the number of the figure's events up to the place.
func (p *place) counted() int64 {
	shape := p.history.shape
	return p.run*shape.accepted(historyRun) + shape.accepted(p.n)
}

// sumBefore returns the figure of the events of all runs before the place.
func (p *place) sumBefore() int64 {
	sum := int64(0)
	for n := range int64(historyRun) {
		if (n+1)%int64(p.history.shape.rejects) != 0 {
			sum += p.history.shape.amount(n + 1)
		}
	}
	return p.run * sum
}

// listCursor returns the cursor of a list of usage below the place.
func (p *place) listCursor(status string) string {
	return cursorAt(strconv.FormatInt(p.recorded.Number, 10), "usage events", p.history.tenant.id.String(), "", status, "", "")
}

// explainCursor returns the cursor of the explanation behind the runs before the place.
func (p *place) explainCursor() string {
	at := append([]string{}, p.history.explained...)
	at[3] = strconv.FormatInt(p.history.ends(p.run).verdict, 10)
	at[6] = strconv.FormatInt(p.sumBefore(), 10)
	at[7] = strconv.FormatInt(p.run*p.history.shape.accepted(historyRun), 10)
	return cursorAt(strings.Join(at, "|"), "explain", p.history.tenant.id.String(), feature, period, "", "", "")
}

// readExplained reads the first page of the figure's explanation, whose cursor holds the figure.
func (h *longHistory) readExplained(ctx context.Context, s *subject) error {
	var page struct{ NextCursor string }
	path := fmt.Sprintf("/usage/aggregates/explain?feature=%s&period=%s&limit=100&tenantId=%s", feature, period, h.tenant.id)
	if err := s.operatorAPI().call(ctx, "GET", path, nil, &page); err != nil {
		return err
	}
	raw, err := base64.RawURLEncoding.DecodeString(page.NextCursor)
	if err != nil {
		return fmt.Errorf("read the cursor of an explanation: %w", err)
	}
	var c cursor
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("read the cursor of an explanation: %w", err)
	}
	if h.explained = strings.Split(c.After, "|"); len(h.explained) != 9 {
		return fmt.Errorf("the cursor of an explanation has changed: %q", c.After)
	}
	return nil
}

// cursor is the service's cursor, which is opaque to clients. This load makes cursors of its own: to walk
// to random places of the log page by page would take hours. The service refuses a wrong cursor.
type cursor struct {
	Version int    `json:"v"`
	After   string `json:"a"`
	Sum     []byte `json:"s"`
}

const cursorSum = 12

// cursorAt returns the cursor of a list's page behind a place.
func cursorAt(after string, list ...string) string {
	h := sha256.New()
	for _, part := range append([]string{"meterplex cursor", after, "0"}, list...) {
		h.Write(append([]byte(part), 0))
	}
	body, _ := json.Marshal(cursor{1, after, h.Sum(nil)[:cursorSum]}) // numbers and valid strings always encode
	return base64.RawURLEncoding.EncodeToString(body)
}
