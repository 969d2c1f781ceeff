package http

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/shape"
	"github.com/meterplex/meterplex/internal/must"
)

// longestPlaces returns places of each kind of list that are as long as entries can make them: text that producers choose
// is full of each character that JSON may escape.
func longestPlaces() map[string][]string {
	const number, sum = "9223372036854775807", "-92233720368547758079223372036854775807"
	id, key, hash := strings.Repeat("f", 36), strings.Repeat("k", 64), make([]byte, 32)
	feature, period, hour := key, "lifetime", "2026-05-01T00:00:00Z"
	join := func(parts ...string) string { return strings.Join(parts, "|") }
	of := map[string][]string{
		"accounts": {feature + "/" + period}, "adjustments": {period + "/" + number + "/" + number}, "aggregates": {join(number, period, feature, id)},
		"aggregates of all tenants": {join(number, id, feature, id)}, "charges of a period": {feature + "/" + id}, "dead letters": {id},
		"dead letter groups": {number + "/" + strings.Repeat("f", 64)}, "deliveries": {id}, "diff events": {number}, "entitlements": {feature}, "events": {"31-" + number},
		"explain":  {join("live", number, number, number, sum, number, sum, number, "false")},
		"features": {key}, "instances": {strings.Repeat("i", 255)}, "keys": {id}, "lines of a period": {feature + "/" + id}, "periods": {period}, "plans": {key},
		"prices": {key}, "projections": {key}, "pushes": {id}, "rebuilds": {id}, "replays": {id}, "sagas": {id}, "schemas": {key + key + "/v999999999"},
		"subscriptions": {id}, "subscriptions of a plan": {id}, "tenants": {id}, "thresholds": {id}, "usage events": {number}, "webhooks": {id}, "withheld": {number + "/31-" + number},
	}
	for _, c := range []string{"<", ">", "&", `"`, `\`, "'", "/", "~"} {
		text := strings.Repeat(c, 255)
		of["conflicts"] = append(of["conflicts"], strings.TrimPrefix(events.KeyConflict(text, hash), "k/"))
		of["reservations"] = append(of["reservations"], text)
	}
	for _, c := range []string{"<", "&", `\"`, `\\`, "é", "\u2028"} {
		value := strings.Repeat(c, domain.MaxGroupValue/len(strings.TrimPrefix(c, `\`)))
		group := `{"` + key + `": "` + value + `", "` + key + `": "` + value + `"}`
		of["series"], of["diff"] = append(of["series"], join(number, hour, group)), append(of["diff"], join(id, feature, hour+" "+group, id))
	}
	return of
}

// Each list accepts the longest cursor that it writes: else the rest of the list could not be read.
func TestTheLongestCursorOfEachListIsAccepted(t *testing.T) {
	rules := shape.NewQuery(&huma.Operation{Parameters: []*huma.Param{{Name: "cursor", In: "query", Schema: &huma.Schema{Type: huma.TypeString}}}})
	places := longestPlaces()
	for _, kind := range slices.Sorted(maps.Keys(places)) {
		longest := 0
		for _, place := range places[kind] {
			l := list{kind}
			text := *l.next(0, place)
			longest = max(longest, len(text))
			if p := rules.Check("cursor=" + text); p != nil {
				t.Errorf("%s: a cursor of %d characters after %.20s…: %s", kind, len(text), place, p.Detail)
			}
			if _, after, err := l.open(text); err != nil || after != place {
				t.Errorf("%s: %.20s… is read as %.20s…, %v", kind, place, after, err)
			}
		}
		t.Logf("%s: at most %d characters", kind, longest)
	}
	if kinds := kindsOfLists(t); !slices.Equal(kinds, slices.Sorted(maps.Keys(places))) {
		t.Errorf("the kinds of lists are %q", kinds)
	}
}

// kindsOfLists returns the names of all lists, from the source.
func kindsOfLists(t *testing.T) (kinds []string) {
	names := regexp.MustCompile(`\blist\{"([^"]+)"|\.opened\(ctx, in, "([^"]+)"`)
	files, err := filepath.Glob("*.go")
	must.OK(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		must.OK(t, err)
		for _, m := range names.FindAllStringSubmatch(string(source), -1) {
			if kind := cmp.Or(m[1], m[2]); !strings.HasSuffix(file, "_test.go") && kind != "meterplex cursor" {
				kinds = append(kinds, kind)
			}
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}
