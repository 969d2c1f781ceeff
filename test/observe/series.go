package observe

import (
	"regexp"
	"slices"
	"strings"
)

// Missing returns the selectors of the rules of which a scrape of an instance, in the text format, has no series.
func Missing(scrape string) (missing []string) {
	exprs := recorded()
	for _, a := range Alerts() {
		exprs = append(exprs, a.Expr)
	}
	for _, expr := range exprs {
		for _, s := range Selectors(expr) {
			if strings.HasPrefix(s, "meterplex_") && !exported(scrape, s) && !slices.Contains(missing, s) {
				missing = append(missing, s)
			}
		}
	}
	return missing
}

// matcher is one matcher of a selector.
var matcher = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)

// exported reports whether a scrape has a series of a selector.
func exported(scrape, selector string) bool {
	name, matchers, _ := strings.Cut(strings.TrimSuffix(selector, "}"), "{")
series:
	for line := range strings.Lines(scrape) {
		series, _, _ := strings.Cut(line, " ")
		of, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		if of != name {
			continue
		}
		has := map[string]string{"job": "$job"} // a target label, which the dashboards choose
		for _, l := range matcher.FindAllStringSubmatch(labels, -1) {
			has[l[1]] = l[3]
		}
		for _, m := range matcher.FindAllStringSubmatch(matchers, -1) {
			equal := has[m[1]] == m[3]
			if strings.HasSuffix(m[2], "~") {
				equal = equal || regexp.MustCompile("^(?:"+m[3]+")$").MatchString(has[m[1]])
			}
			if equal == strings.HasPrefix(m[2], "!") {
				continue series
			}
		}
		return true
	}
	return false
}
