package importer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// keyLife is how long a key of an import works if the import cannot revoke it.
const keyLife = 24 * time.Hour

// Recipient is a tenant that gets events of an import.
type Recipient struct {
	Client *client.Client // with the tenant's key

	id        string // of the tenant, "" if the file names none
	mode      string // of its keys
	key       string // id of the key that the import made
	last      int64  // number of the last position of a recorded event
	position  string
	positions positions // of the recorded events
}

// Name names the tenant in messages, "" if the file names none.
func (r *Recipient) Name() string {
	if r.id == "" {
		return ""
	}
	return " of tenant " + r.id
}

// Last returns the last position of the tenant's events, "" before the first one.
func (r *Recipient) Last() string { return r.position }

// pass moves the last position. All positions of a tenant are of one partition.
func (r *Recipient) pass(position string) {
	n := numberOf(position)
	if n == 0 {
		return
	}
	if n > r.last {
		r.last, r.position = n, position
	}
	r.positions.add(n)
}

// Recorded reports whether a position is that of one of the import's events, and whether it is below all of them.
func (r *Recipient) Recorded(position string) (of, below bool) {
	n := numberOf(position)
	return r.positions.has(n), n < r.positions.first
}

func newRecipient(c *client.Client, id string) *Recipient {
	return &Recipient{Client: c, id: id, positions: positions{bits: map[int64]uint64{}}}
}

// recipients returns the tenants of a file by the values of TenantColumn: ids or external ids. For each it makes a key, which Close
// revokes.
func (im *Importer) recipients(ctx context.Context, job Job, s scan) (map[string]*Recipient, error) {
	if job.Mapping.TenantColumn == "" {
		return map[string]*Recipient{"": newRecipient(im.Client, "")}, nil
	}
	to, ids, unknown := map[string]*Recipient{}, map[string]*Recipient{}, []error(nil)
	for _, value := range slices.SortedFunc(maps.Keys(s.tenants), func(a, b string) int { return s.tenants[a] - s.tenants[b] }) {
		id, mode, err := im.findTenant(ctx, value)
		switch {
		case err != nil:
			return nil, err
		case id == "" && len(unknown) < maxShown:
			unknown = append(unknown, fmt.Errorf("line %d: no tenant has the id or external id %s", s.tenants[value], clipped(value)))
		case id != "":
			if ids[id] == nil {
				ids[id] = newRecipient(nil, id)
				ids[id].mode = cmp.Or(mode, "live")
			}
			to[value] = ids[id]
		}
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("nothing sent: tenants are unknown; give them external ids (meterplex tenants update ID --external-id), "+
			"or leave their rows out with --where\n%w", errors.Join(unknown...))
	}
	for _, r := range ids {
		if err := im.openKey(ctx, job, r); err != nil {
			return nil, err
		}
	}
	return to, nil
}

// findTenant returns the id of the tenant with an id or external id, "" if there is none, and the mode of its keys.
func (im *Importer) findTenant(ctx context.Context, value string) (id, mode string, err error) {
	var tenant struct{ ID, Mode string }
	raw, err := im.Client.Get(ctx, client.Path("tenants", value), nil)
	p, refused := errors.AsType[*client.Problem](err)
	switch {
	case refused && (p.Status == http.StatusForbidden):
		return "", "", fmt.Errorf("--tenant-column needs an operator key with the scope admin: a tenant's key sends its own usage only: %w",
			err)
	case refused && p.Status/100 == 4:
		err = im.Client.Each(ctx, "/tenants", url.Values{"externalId": {value}}, 1, func(found json.RawMessage) error {
			raw = found
			return nil
		})
		if p, ok := errors.AsType[*client.Problem](err); ok && p.Status == http.StatusBadRequest {
			return "", "", nil // no text of an external id
		}
	}
	if err != nil || len(raw) == 0 {
		return "", "", err
	}
	if err := json.Unmarshal(raw, &tenant); err != nil {
		return "", "", fmt.Errorf("read a tenant: %w", err)
	}
	return tenant.ID, tenant.Mode, nil
}

// openKey makes a key with which the import sends a tenant's usage.
func (im *Importer) openKey(ctx context.Context, job Job, r *Recipient) error {
	scopes := []string{"usage:write", "usage:read"}
	if job.Times == TimesBackfill {
		scopes = append(scopes, "usage:backfill")
	}
	raw, err := im.Client.Post(ctx, client.Path("tenants", r.id, "api-keys"), "", map[string]any{
		"name": "import " + job.Name, "mode": r.mode, "scopes": scopes, "expiresAt": im.Now().Add(keyLife).UTC().Format(time.RFC3339),
	})
	if err != nil {
		return fmt.Errorf("make a key%s: %w", r.Name(), err)
	}
	var made struct{ ID, Secret string }
	if err := json.Unmarshal(raw, &made); err != nil || made.Secret == "" {
		return fmt.Errorf("the answer with the key%s was lost; run the import again", r.Name())
	}
	r.key = made.ID
	r.Client = im.Client.WithKey(made.Secret)
	im.opened = append(im.opened, r)
	return nil
}

// Close revokes the keys that imports made.
func (im *Importer) Close(ctx context.Context) error {
	var failed []string
	for _, r := range im.opened {
		if _, err := im.Client.Do(ctx, client.Request{Method: http.MethodDelete, Path: client.Path("tenants", r.id, "api-keys",
			r.key)}); err != nil {
			failed = append(failed, fmt.Sprintf("meterplex keys revoke %s --tenant %s (%v)", r.key, r.id, err))
		}
	}
	im.opened = nil
	if len(failed) > 0 {
		return fmt.Errorf("keys of the import are not revoked; they end after %s:\n  %s", keyLife, strings.Join(failed, "\n  "))
	}
	return nil
}
