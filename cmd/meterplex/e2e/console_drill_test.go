package e2e

import (
	"context"
	"fmt"
	"html"
	"math/big"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rod/rod"
	"pgregory.net/rapid"
)

// drills is how many figures are drawn: the pages of each are some requests.
const drills = 50

// drillWorld draws figures while usage arrives.
type drillWorld struct {
	*consoleWorld
	*window
	tenants   []*tenant
	positions map[string][]string // that pages have displayed, by tenant; "": the present
}

// figuresAreTheirEvents: for random figures, at random positions, the listed events sum up to the figure at the displayed position, and the receipt of each names the
// figure, while usage arrives and a rebuild is promoted.
func figuresAreTheirEvents(t *testing.T, w *consoleWorld, _ *rod.Browser) {
	d := &drillWorld{consoleWorld: w, window: w.window(t, w.operator), tenants: w.createTenants(w.at, 3), positions: map[string][]string{}}
	for _, x := range d.tenants {
		d.positions[x.id] = []string{""}
	}
	defer d.traffic()()
	w.abandonReady()
	var r rebuild
	w.ask(w.operator, http.MethodPost, w.at, "/api/v1/projections/usage_aggregates/rebuilds", object{"reason": "under traffic"}, &r, http.StatusAccepted)
	drawn, figures, events := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		x := rapid.SampledFrom(d.tenants).Draw(rt, "tenant")
		at := rapid.SampledFrom(d.positions[x.id]).Draw(rt, "position")
		one, other := rapid.Uint16().Draw(rt, "figure"), rapid.Uint16().Draw(rt, "event")
		switch drawn++; {
		case drawn > drills:
			return
		case drawn == drills/2:
			w.deployment.ready(w.at, r.ID)
			w.ask(w.operator, http.MethodPost, w.at, "/api/v1/rebuilds/"+r.ID+"/promote", object{"reason": "under traffic"}, nil, http.StatusAccepted)
		}
		f, found := d.figure(rt, x, at, int(one))
		if !found {
			return
		}
		figures++
		d.positions[x.id] = append(d.positions[x.id], f.at.Get("asOfPosition"))
		listed := d.behind(rt, f)
		events += len(listed)
		d.receipt(rt, f, listed[int(other)%len(listed)])
	})
	within(t, "the rebuild is promoted", func(context.Context) (bool, string) {
		state := w.rebuild(w.at, r.ID).State
		return state == "PROMOTED", state
	})
	if figures < drills/2 || events < figures {
		t.Errorf("only %d figures of %d events", figures, events)
	}
	t.Logf("%d figures of %d events", figures, events)
}

// traffic sends usage until it is stopped.
func (d *drillWorld) traffic() (stop func()) {
	ctx, cancel := context.WithCancel(d.consoleWorld.t.Context())
	var sent sync.WaitGroup
	for i, x := range d.tenants {
		sent.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				batch := events(fmt.Sprint("drill-", i, "-", n), 1+n%9, features()[n%len(features())])
				(&client{w: d.deployment, tenant: x, to: d.at.url}).send(ctx, batch)
				select {
				case <-ctx.Done():
				case <-time.After(40 * time.Millisecond):
				}
			}
		})
	}
	return func() { cancel(); sent.Wait() }
}

// drilled is a figure of a page, or an event behind it: its amount, and the parameters of the page that explains it.
type drilled struct {
	path   string
	at     url.Values
	amount string
}

var (
	figureLink = regexp.MustCompile(`<td class="number"><a href="(/console/usage/explain[^"]*)">(-?[0-9]+)</a>`)
	eventRow   = regexp.MustCompile(`<tr><td><a href="(/console/usage/events/[^"]*)">[^<]*</a></td>.*\n.*<td class="number">(-?[0-9]+)</td><td class="number">(-?[0-9]+)</td></tr>`)
	nextLink   = regexp.MustCompile(`<a rel="next" href="([^"]*)">`)
)

func drilledOf(link []string) drilled {
	u, _ := url.Parse(html.UnescapeString(link[1]))
	return drilled{u.String(), u.Query(), link[2]}
}

// figure returns one of the figures of a tenant, at a position.
func (d *drillWorld) figure(rt *rapid.T, x *tenant, position string, n int) (drilled, bool) {
	_, page := d.open("/console/usage?" + url.Values{"tenantId": {x.id}, "asOfPosition": {position}}.Encode())
	all := figureLink.FindAllStringSubmatch(page, -1)
	if len(all) == 0 {
		return drilled{}, false
	}
	f := drilledOf(all[n%len(all)])
	if position != "" && f.at.Get("asOfPosition") != position {
		rt.Fatalf("the figures at %s are those at %s", position, f.at.Get("asOfPosition"))
	}
	return f, true
}

// behind returns the events of all pages behind a figure. Their running sum is the figure.
func (d *drillWorld) behind(rt *rapid.T, f drilled) (all []drilled) {
	sum, last := new(big.Int), ""
	for at := f.path; at != ""; {
		_, page := d.open(at)
		if !strings.Contains(page, `id="figure">`+f.amount+`<`) || !strings.Contains(page, `<code id="position">`+f.at.Get("asOfPosition")+`</code>`) {
			rt.Fatalf("%s does not show %s:\n%s", at, f.amount, page)
		}
		for _, row := range eventRow.FindAllStringSubmatch(page, -1) {
			amount, _ := new(big.Int).SetString(row[2], 10)
			if last = sum.Add(sum, amount).String(); last != row[3] {
				rt.Fatalf("%s: the running sum is %s instead of %s", at, row[3], last)
			}
			all = append(all, drilledOf(row))
		}
		at = ""
		if next := nextLink.FindStringSubmatch(page); next != nil {
			at = html.UnescapeString(next[1])
		}
	}
	if last != f.amount {
		rt.Fatalf("%s: %d events sum up to %s instead of %s", f.path, len(all), last, f.amount)
	}
	return all
}

var countsIn = regexp.MustCompile(`<dt>Counts in</dt><dd><a href="([^"]*)">`)

// receipt opens the receipt of an event behind a figure, which belongs to it.
func (d *drillWorld) receipt(rt *rapid.T, f, event drilled) {
	_, page := d.open(event.path)
	link := countsIn.FindStringSubmatch(page)
	if link == nil || !strings.Contains(page, `<strong class="mono">`+event.amount+`</strong>`) {
		rt.Fatalf("%s does not count %s:\n%s", event.path, event.amount, page)
	}
	counted := drilledOf([]string{"", link[1], ""})
	for _, name := range []string{"tenantId", "feature", "period", "subscriptionId"} {
		if counted.at.Get(name) != f.at.Get(name) {
			rt.Fatalf("%s belongs to %v instead of %v", event.path, counted.at, f.at)
		}
	}
}
