package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// short returns the end of an id: the beginning of a UUIDv7 is a time, which ids of one minute share.
func short(id any) string {
	whole := Text(id)
	if end := whole[strings.LastIndexByte(whole, '-')+1:]; end != whole {
		return "…" + end
	}
	return whole
}

// TenantNames are names that were read, by the ids of tenants.
type TenantNames map[string]string

// of returns the name of a tenant, with the end of its id if another tenant has the name, too, and only that end if the name cannot be
// read.
func (n TenantNames) of(v *Visit, id string) string {
	name, known := n[id]
	if !known {
		name = v.tenantName(id)
		n[id] = name
	}
	return name
}

// Add adds the member tenantName to events.
func (n TenantNames) Add(v *Visit, events ...any) {
	for _, e := range events {
		if e, ok := e.(map[string]any); ok && Text(e["tenantId"]) != "" {
			e["tenantName"] = n.of(v, Text(e["tenantId"]))
		}
	}
}

// TenantName is tenantNames.of for the names of a page.
func (d *view) TenantName(id any) string {
	if d.names == nil {
		d.names = TenantNames{}
	}
	return d.names.of(d.v, Text(id))
}

// maxChoices bounds the tenants that a picker lists.
const maxChoices = 100

// tenantChoice is a tenant in a picker.
type tenantChoice struct{ Value, Name string }

// tenantList lists the tenants by their names, those of the same name with the ends of their ids. It is empty if the visitor may not read
// them, or if there are many.
func (v *Visit) tenantList() []tenantChoice {
	if v.tenants != nil {
		return v.tenants
	}
	v.tenants = []tenantChoice{}
	if v.c.names.many.Load() {
		return v.tenants
	}
	list, err := v.Do(Request{Method: http.MethodGet, Path: API("tenants"), Query: Limited(maxChoices, nil)})
	if err != nil {
		return v.tenants
	}
	if list["nextCursor"] != nil {
		v.c.names.many.Store(true)
		return v.tenants
	}
	named := map[string]int{}
	for _, entry := range Items(list["data"]) {
		named[Text(Member(entry, "name"))]++
	}
	for _, entry := range Items(list["data"]) {
		c := tenantChoice{Text(Member(entry, "id")), Text(Member(entry, "name"))}
		if named[c.Name] > 1 {
			c.Name += " " + short(c.Value)
		}
		v.tenants = append(v.tenants, c)
	}
	return v.tenants
}

// TenantChoices lists the tenants for a picker, and other values of the page's tenant. If the list is empty, or if the page's tenant is
// not in it, the page asks for an id instead.
func (d *view) TenantChoices() []tenantChoice {
	all, chosen := d.v.tenantList(), d.v.Query.Get("tenantId")
	if len(all) > 0 && d.Page.Path == Prefix+"/events" { // the log has events of no tenant
		all = append(slices.Clone(all), tenantChoice{"platform", "platform"})
	}
	if chosen != "" && !slices.ContainsFunc(all, func(c tenantChoice) bool { return c.Value == chosen }) {
		return nil
	}
	return all
}

// Subscription names a subscription of the page's tenant by its plan, with the end of its id if another has the plan, too, and by that end
// if its plan cannot be read.
func (d *view) Subscription(id any) string {
	if d.plans == nil {
		d.plans = map[string]string{}
		if tenant := d.Tenant(); tenant != "" && d.IsOperator() {
			list, _ := d.v.Do(Request{Method: http.MethodGet, Path: API("tenants", tenant, "subscriptions"),
				Query: Limited(maxChoices, nil)})
			for _, entry := range Items(list["data"]) {
				d.plans[Text(Member(entry, "id"))] = Text(Member(entry, "plan"))
			}
		}
	}
	plan := d.plans[Text(id)]
	same := 0
	for _, other := range d.plans {
		if other == plan {
			same++
		}
	}
	switch {
	case plan == "":
		return short(id)
	case same > 1:
		return plan + " " + short(id)
	}
	return plan
}

// knownNames are names of tenants that pages showed in the last ten seconds, in an installation with more tenants than a picker lists:
// there the look for a tenant of the same name reads them all. An action on this instance forgets them.
type knownNames struct {
	many atomic.Bool // there are more tenants than maxChoices; tenants are never deleted
	mu   sync.Mutex
	read time.Time         // of the first name
	all  map[string]string // by the visitor's rights and id
}

// nameTime bounds the age of a name.
const nameTime = 10 * time.Second

func (n *knownNames) get(key string, now time.Time) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.read) >= nameTime {
		n.all = nil
	}
	return n.all[key]
}

func (n *knownNames) put(key, name string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.read, n.all = now, map[string]string{}
	}
	n.all[key] = name
}

func (n *knownNames) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = nil
}

func (v *Visit) tenantName(id string) string {
	switch {
	case id == uuid.Nil.String():
		return "platform"
	case v.Tenant != nil && v.Tenant.ID.String() == id:
		return v.Tenant.Name
	}
	if at := slices.IndexFunc(v.tenantList(), func(c tenantChoice) bool { return c.Value == id }); at >= 0 {
		return v.tenants[at].Name
	}
	key := fmt.Sprint(v.caller.TenantID, v.caller.Scopes, id)
	if name := v.c.names.get(key, v.Now()); name != "" {
		return name
	}
	name, err := v.readName(id)
	if err == nil && name != "" {
		v.c.names.put(key, name, v.Now())
	}
	return cmp.Or(name, short(id))
}

// readName reads the name of a tenant, and looks for another one of that name.
func (v *Visit) readName(id string) (string, error) {
	tenant, err := v.Do(Request{Method: http.MethodGet, Path: API("tenants", id)})
	name, _ := tenant["name"].(string)
	if err != nil || name == "" {
		return "", err
	}
	namesakes, err := v.Do(Request{Method: http.MethodGet, Path: API("tenants"), Query: url.Values{"q": {name}, "limit": {"100"}}})
	if err != nil || namesakes["nextCursor"] != nil {
		return name + " " + short(id), err
	}
	for _, of := range Items(namesakes["data"]) {
		if other, ok := of.(map[string]any); ok && Text(other["name"]) == name && Text(other["id"]) != id {
			return name + " " + short(id), nil
		}
	}
	return name, nil
}
