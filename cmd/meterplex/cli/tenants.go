package cli

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// TenantsCmd groups the tenants commands.
type TenantsCmd struct {
	Create TenantsCreate `cmd:"" help:"Create a tenant."`
	List   TenantsList   `cmd:"" help:"List the tenants."`
	Show   TenantsShow   `cmd:"" help:"Show one tenant."`
	Update TenantsUpdate `cmd:"" help:"Change a tenant."`

	Billing TenantsBilling `cmd:"" help:"Set the customer of a tenant at the billing provider, or remove it."`

	Offboard TenantsOffboard `cmd:"" help:"End a tenant, and keep its figures."`

	Erase    TenantsErase    `cmd:"" help:"Erase the personal data of archived tenants, for ever."`
	Erasures TenantsErasures `cmd:"" help:"List the erasures."`
}

// Once holds the Idempotency-Key of a creation.
type Once struct {
	IdempotencyKey string `placeholder:"TEXT" help:"Creating again with the same text gives the first answer instead of a second one. Not given: a new one for each call."`
}

// Because holds the reason of a change whose request has no member for it.
type Because struct {
	Reason string `placeholder:"TEXT" help:"The reason, recorded in the log."`
}

func (b *Because) because() string { return b.Reason }

// Limit holds the maximum number of rows of a list.
type Limit struct {
	Limit int `placeholder:"N" help:"Maximum number of rows; 0, the default, means all."`
}

// TenantsCreate creates a tenant.
type TenantsCreate struct {
	Name  string `arg:"" help:"Its name."`
	Class string `enum:"small,medium,large" default:"small" placeholder:"CLASS" help:"small, medium or large (default small)."`

	Mode string `enum:"live,test" default:"live" placeholder:"MODE" help:"live, or test: it is not billed, and its keys are mp_test_… (default live). It cannot be changed."`

	DataResidency string `placeholder:"REGION" help:"Where its data is to be, e.g. eu-central-1. Not given: the service's METERPLEX_REGION."`

	ExternalID []string          `sep:"none" placeholder:"ID" help:"Its id in another system; repeat the flag for more, at most 16. No two tenants share one."`
	Metadata   map[string]string `mapsep:"none" placeholder:"KEY=VALUE" help:"A note about it; repeat the flag for more, at most 50."`
	Once
	Because
}

// Run prints the tenant with its id.
func (c *TenantsCreate) Run(a *app) error {
	body := map[string]any{"name": c.Name, "class": c.Class}
	if c.Mode != "live" {
		body["mode"] = c.Mode
	}
	if c.DataResidency != "" {
		body["dataResidency"] = c.DataResidency
	}
	if len(c.ExternalID) > 0 {
		body["externalIds"] = c.ExternalID
	}
	if len(c.Metadata) > 0 {
		body["metadata"] = c.Metadata
	}
	return a.create("/tenants", c.IdempotencyKey, body)
}

// TenantsList lists tenants.
type TenantsList struct {
	Query string `name:"q" aliases:"query" short:"q" placeholder:"TEXT" help:"Only tenants whose name or one of whose external ids contains the text, or whose id begins with it, without regard to case."`

	ExternalID string `placeholder:"ID" help:"Only the tenant with this external id."`
	Limit
}

// Run prints the rows.
func (c *TenantsList) Run(a *app) error {
	columns := []string{"id", "name", "class", "mode", "status", "createdAt", "externalIds"}
	params := url.Values{}
	if c.ExternalID != "" {
		params.Set("externalId", c.ExternalID)
	}
	if c.Query != "" {
		params.Set("q", c.Query)
	}
	return a.list("/tenants", params, c.Limit.Limit, columns...)
}

// TenantsShow shows a tenant.
type TenantsShow struct {
	ID string `arg:"" help:"The tenant's id."`
}

// Run prints the tenant.
func (c *TenantsShow) Run(a *app) error { return a.show(client.Path("tenants", c.ID), nil) }

// TenantsUpdate changes a tenant.
type TenantsUpdate struct {
	ID     string  `arg:"" help:"The tenant's id."`
	Name   *string `placeholder:"TEXT" help:"A new name."`
	Class  *string `placeholder:"CLASS" help:"small, medium or large."`
	Status *string `placeholder:"STATUS" help:"ACTIVE, or SUSPENDED: its keys are refused within a second."`

	DataResidency *string `placeholder:"REGION" help:"A new data residency, e.g. eu-central-1, for events recorded from then on."`

	ExternalID []string          `sep:"none" placeholder:"ID" help:"An id in another system, instead of all that it has; repeat the flag for more."`
	Metadata   map[string]string `mapsep:"none" placeholder:"KEY=VALUE" help:"A note, instead of all that it has; repeat the flag for more."`

	NoExternalIDs bool `name:"no-external-ids" help:"Remove all its external ids."`
	NoMetadata    bool `help:"Remove all its notes."`

	LateUsage       *string `placeholder:"POLICY" help:"What becomes of usage of a closed period: REJECT (refused), or ADJUST (counts as an adjustment)."`
	CloseAfterHours *int    `placeholder:"N" help:"Close its periods so many hours after their end, 1 to 8784."`
	NoCloseAfter    bool    `help:"Close its periods by request only."`
	Because
}

// Run prints the changed tenant.
func (c *TenantsUpdate) Run(a *app) error {
	var ids *[]string
	var notes *map[string]string
	if len(c.ExternalID) > 0 || c.NoExternalIDs {
		ids = &[]string{}
		*ids = append(*ids, c.ExternalID...)
	}
	if len(c.Metadata) > 0 || c.NoMetadata {
		notes = &map[string]string{}
		maps.Copy(*notes, c.Metadata)
	}
	var hours json.RawMessage
	if c.CloseAfterHours != nil {
		hours = strconv.AppendInt(nil, int64(*c.CloseAfterHours), 10)
	} else if c.NoCloseAfter {
		hours = json.RawMessage("null")
	}
	return a.change(http.MethodPatch, client.Path("tenants", c.ID), struct {
		Name   *string `json:"name,omitempty"`
		Class  *string `json:"class,omitempty"`
		Status *string `json:"status,omitempty"`

		DataResidency *string `json:"dataResidency,omitempty"`

		ExternalIDs *[]string          `json:"externalIds,omitempty"`
		Metadata    *map[string]string `json:"metadata,omitempty"`

		LateUsage       *string         `json:"lateUsage,omitempty"`
		CloseAfterHours json.RawMessage `json:"closeAfterHours,omitempty"`
	}{c.Name, c.Class, c.Status, c.DataResidency, ids, notes, c.LateUsage, hours})
}
