package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

// pageTimes are the times of pages in the browser.
type pageTimes []pageTime

// pageTime is when a page was there and when it could be used, both since the navigation began.
type pageTime struct {
	address          string
	received, usable time.Duration
}

// navigated is when the page was received, and when it could be used: it is loaded and the scripts have run.
const navigated = `(async () => {
  const n = performance.getEntriesByType("navigation")[0];
  while (!n.loadEventEnd) await new Promise(next => setTimeout(next, 1));
  return n.responseEnd + " " + n.loadEventEnd + " " + (typeof window.htmx);
})()`

// add measures the page that the tab shows.
func (all *pageTimes) add(p *tab, address string) {
	p.t.Helper()
	var received, usable float64
	var htmx string
	if _, err := fmt.Sscan(p.eval(navigated), &received, &usable, &htmx); err != nil || received <= 0 || usable < received || htmx != "object" {
		p.t.Errorf("%s is received after %v ms and usable after %v ms, htmx is %s: %v", address, received, usable, htmx, err)
	}
	ms := func(n float64) time.Duration {
		return time.Duration(n * float64(time.Millisecond)).Round(time.Millisecond / 10)
	}
	*all = append(*all, pageTime{address, ms(received), ms(usable)})
}

// log prints the times, the slowest page first. They have no limit: a busy machine slows them down.
func (all pageTimes) log(t *testing.T) {
	slices.SortFunc(all, func(a, b pageTime) int { return cmp.Compare(b.usable, a.usable) })
	for _, p := range all {
		t.Logf("usable after %s, received after %s: %s", p.usable, p.received, p.address)
	}
	if len(all) > 0 {
		t.Logf("%d pages: usable after %s in the median, the slowest after %s (aim: 500ms)", len(all), all[len(all)/2].usable, all[0].usable)
	}
}
