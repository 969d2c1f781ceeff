package events

import (
	"strconv"

	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/http/problem"
)

// branch is an event in the tree of a lineage, with those of its effects that the page shows below it.
type branch struct {
	Event   map[string]any
	Root    bool     // the event whose lineage this is
	Others  []string // ids of its causes that are not right above it
	Effects []*branch
}

// Bounds of a tree: of the events on a page, and of its depth, beyond which an effect names its cause instead.
const (
	maxBranches = 200
	maxDepth    = 12
	maxCauses   = 10
)

func lineagePage() *console.Page {
	return &console.Page{Path: lineagePath, Title: "Lineage", Template: "lineage.html", Needs: "GET /api/v1/events/{event}/lineage",
		Who:    console.Either,
		Params: []string{"tenantId", "skip"}, CLI: []string{"meterplex events lineage {event}[ --tenant {tenantId}]"},
		Load: func(v *console.Visit) (console.Doc, error) {
			skip, err := strconv.Atoi("0" + v.Query.Get("skip"))
			if err != nil || skip < 0 {
				return nil, problem.New("parameter_invalid", "skip is the number of events before the page, in digits")
			}
			d, err := v.Get(console.API("events", v.Param("event"), "lineage"), v.Pick("tenantId"))
			if err != nil {
				return nil, err
			}
			l := newLineage(d)
			d["tree"], d["count"] = l.tree(skip, maxBranches), len(l.order)
			d["from"], d["upTo"] = min(skip+1, len(l.order)), min(skip+maxBranches, len(l.order))
			if skip+maxBranches < len(l.order) {
				d["next"] = strconv.Itoa(skip + maxBranches)
			}
			if d["truncated"] == true { // the log has the rest
				event, err := v.Get(console.API("events", v.Param("event")), v.Pick("tenantId"))
				d["trace"] = event["correlationId"]
				return d, err
			}
			return d, nil
		}}
}

// lineage is the answer of the API as a graph.
type lineage struct {
	root   string
	nodes  map[string]map[string]any
	causes map[string][]string
	order  []string // depth first: below its first cause, an event stands before its effects
	depth  map[string]int
}

func newLineage(d console.Doc) *lineage {
	l := &lineage{root: console.Text(d["root"]), nodes: map[string]map[string]any{}, causes: map[string][]string{}, depth: map[string]int{}}
	effects := map[string][]string{}
	var ids []string
	for _, n := range console.Items(d["nodes"]) {
		node, _ := n.(map[string]any)
		ids = append(ids, console.Text(node["eventId"]))
		l.nodes[console.Text(node["eventId"])] = node
	}
	for _, e := range console.Items(d["edges"]) {
		edge, _ := e.(map[string]any)
		from, to := console.Text(edge["from"]), console.Text(edge["to"])
		l.causes[to] = append(l.causes[to], from)
		effects[from] = append(effects[from], to)
	}
	var visit func(id string, depth int)
	visit = func(id string, depth int) {
		if _, seen := l.depth[id]; seen || l.nodes[id] == nil {
			return
		}
		l.depth[id] = depth
		l.order = append(l.order, id)
		for _, effect := range effects[id] {
			visit(effect, depth+1)
		}
	}
	for _, id := range ids { // first those without a cause
		if len(l.causes[id]) == 0 {
			visit(id, 0)
		}
	}
	for _, id := range ids {
		visit(id, 0)
	}
	return l
}

// tree returns a page of the events. One whose cause is not above it on the page names it.
func (l *lineage) tree(skip, n int) (top []*branch) {
	shown := map[string]*branch{}
	level := map[string]int{} // on the page
	for _, id := range l.order[min(skip, len(l.order)):min(skip+n, len(l.order))] {
		b := &branch{Event: l.nodes[id], Root: id == l.root}
		shown[id] = b
		causes := l.causes[id]
		var above *branch
		for i, cause := range causes {
			if above == nil && shown[cause] != nil && level[cause] < maxDepth {
				above, level[id] = shown[cause], level[cause]+1
			} else if i < maxCauses {
				b.Others = append(b.Others, cause)
			}
		}
		if above == nil {
			top = append(top, b)
		} else {
			above.Effects = append(above.Effects, b)
		}
	}
	return top
}
