package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// consoleTenants is the number of tenants beside the one with the long history.
	consoleTenants = 10_000
	// consoleViewers is the number of viewers of the overview, and viewerRounds the number of times that they watch.
	consoleViewers, viewerRounds = 50, 3
	// consoleHTML bounds the bytes of a page.
	consoleHTML = 200_000
)

// consolePages are the pages of the console that are measured, and the size of the largest answer.
type consolePages struct {
	largest int
	where   string
}

// html checks that an answer is a page, and keeps the size of the largest.
func (c *consolePages) html(name string) func(*place, []byte) error {
	return func(_ *place, body []byte) error {
		if !bytes.Contains(body, []byte("<h1>")) || bytes.Contains(body, []byte(`class="problem"`)) {
			return errors.New("it is no page, or has a problem")
		}
		if len(body) > c.largest {
			c.largest, c.where = len(body), name
		}
		return nil
	}
}

// list returns the pages that read the most.
func (c *consolePages) list(tenant string) []read {
	of := "tenantId=" + tenant
	var pages []read
	for _, p := range []struct {
		name string
		path func(*place) string
	}{
		{"overview", fixed("/overview")},
		{"tenants", fixed("/tenants")},
		{"search of a name", fixed("/search?q=Tenant+99")},
		{"tenant", fixed("/tenants/" + tenant)},
		{"usage", fixed("/usage?" + of + "&" + figurePath)},
		{"events behind a figure", fixed("/usage/explain?" + of + "&" + figurePath)},
		{"usage events", fixed("/usage/events?" + of)},
		{"rejected usage events", fixed("/usage/events?" + of + "&status=REJECTED")},
		{"receipt", func(p *place) string { return "/usage/events/" + p.eventID() + "?" + of }},
		{"events", fixed("/events?" + of)},
		{"event", func(p *place) string { return "/events/" + p.recorded.String() }},
		{"lineage", func(p *place) string { return "/events/" + p.recorded.String() + "/lineage" }},
		{"dead letters", fixed("/dead-letters")},
		{"entitlements", fixed("/entitlements?" + of)},
		{"rebuilds", fixed("/rebuilds")},
		{"catalogue", fixed("/catalogue")},
		{"system", fixed("/system")},
	} {
		pages = append(pages, read{p.name, p.path, c.html(p.name)})
	}
	return pages
}

func figureConsole(size int, c *consolePages, viewers *float64) Figure {
	return Figure{
		ID: "console", Unit: "ms (p99)", What: fmt.Sprintf("pages of the console with %s events of a tenant and %s tenants (all roles)",
			thousands(int64(size)), thousands(consoleTenants)),
		aims: []aim{
			readsBelow("p99 < 100 ms", 100),
			{"HTML ≤ 200 KB", func(*Figure) bool { return c.largest > 0 && c.largest <= consoleHTML }},
			{fmt.Sprintf("%d viewers of the overview cost < 2 %% of the machine", consoleViewers), func(*Figure) bool {
				return *viewers < 2
			}},
		},
	}
}

// console measures the pages of the console beside a long history and many tenants, and the cost of viewers.
func (r *run) console(ctx context.Context, s *subject, h *longHistory) error {
	sql := fmt.Sprintf(`INSERT INTO tenants (id, name, class, status, created_at)
 SELECT ('0196c0de-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'Tenant ' || n, 'small', 'ACTIVE', now() FROM generate_series(1,
 %d) n`, consoleTenants)
	if err := s.servers.asAdmin(ctx, s.database, sql, "ANALYZE tenants"); err != nil {
		return err
	}
	cookie, err := s.signIn(ctx)
	if err != nil {
		return err
	}
	pages, viewers := new(consolePages), 0.0
	g := readGroup{figure: figureConsole(r.times.figure, pages, &viewers), reads: pages.list(s.tenants[0].id.String())}
	if err := r.readGroup(ctx, s, h, []readKey{{kind: operatorKey, secret: cookie, console: true}}, &g); err != nil {
		return err
	}
	f := &g.figure
	f.note("the largest page", fmt.Sprintf("%s: %d bytes", pages.where, pages.largest))
	if viewers, err = r.viewers(ctx, s, cookie); err != nil {
		return err
	}
	f.note("viewers", fmt.Sprintf("%d viewers of the overview cost %.2f %% of the machine", consoleViewers, viewers))
	r.addFigure(*f)
	return nil
}

// signIn returns the cookie of a session with the operator's key.
func (s *subject) signIn(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.urls[0]+"/console/sign-in",
		strings.NewReader(url.Values{"key": {s.operator}}.Encode()))
	if err != nil {
		return "", fmt.Errorf("make a request: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultTransport.RoundTrip(req) // follows no redirect
	if err != nil {
		return "", fmt.Errorf("sign in: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSeeOther {
		return "", &Answer{"POST /console/sign-in", resp.StatusCode, nil}
	}
	cookie, _, _ := strings.Cut(resp.Header.Get("Set-Cookie"), ";")
	return cookie, nil
}

// viewers returns the part of the machine, in percent, that viewers of the overview cost the service and its database. In some rounds they
// watch after a time without them; the least of each is compared, without the reads of the whole log that the service makes from time to
// time.
func (r *run) viewers(ctx context.Context, s *subject, cookie string) (float64, error) {
	alone, beside := math.Inf(1), math.Inf(1)
	for range viewerRounds {
		cores, err := r.busy(ctx)
		if err != nil {
			return 0, err
		}
		alone = min(alone, cores)
		if cores, err = r.busyBeside(ctx, s, cookie); err != nil {
			return 0, err
		}
		beside = min(beside, cores)
	}
	return 100 * (beside - alone) / float64(r.report.Machine.Cores), nil
}

// busyBeside returns the cores that the service and its database use while all viewers watch the overview.
func (r *run) busyBeside(ctx context.Context, s *subject, cookie string) (float64, error) {
	watching, leave := context.WithCancel(ctx)
	defer leave()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: consoleViewers}}
	defer client.CloseIdleConnections()
	seen := make(chan error, consoleViewers)
	for range consoleViewers {
		go func() { seen <- view(watching, client, s.urls[0], cookie) }()
	}
	beside, err := r.busy(ctx)
	if err != nil {
		return 0, err
	}
	leave()
	for range consoleViewers {
		if err := <-seen; err != nil {
			return 0, err
		}
	}
	return beside, nil
}

// busy returns the cores that the service and its database use without requests.
func (r *run) busy(ctx context.Context) (float64, error) {
	pause(ctx, 2*time.Second)
	end, err := r.servers.measure(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	pause(ctx, r.times.idle)
	took, err := end(rate{events: 1, took: time.Since(began)})
	return (took.cpu.Service + took.cpu.Postgres) / took.did.took.Seconds(), err
}

// view reloads the live part of the overview every two seconds, as its script does, until ctx ends.
func view(ctx context.Context, client *http.Client, address, cookie string) error {
	for tag := ""; ctx.Err() == nil; pause(ctx, 2*time.Second) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/console/overview/live", nil)
		if err != nil {
			return fmt.Errorf("make a request: %w", err)
		}
		req.Header.Set("Cookie", cookie)
		req.Header.Set("If-None-Match", tag)
		resp, err := client.Do(req)
		if err == nil {
			tag = resp.Header.Get("ETag")
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("view the overview: %w", err)
		case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotModified:
			return &Answer{"GET /console/overview/live", resp.StatusCode, nil}
		}
	}
	return nil
}
