package catalogue

import (
	"cmp"
	"context"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// ExternalIDs keeps the ids of tenants in other systems.
type ExternalIDs interface {
	// SaveExternalIDs replaces a tenant's external ids. It returns the first id, in the order of ids, that belongs
	// to another tenant, and "" if all are free. The caller has appended the event of the change: external ids are
	// locked after all heads.
	SaveExternalIDs(tenant uuid.UUID, ids []string) (taken string, err error)
}

// CreateTenant is a request for a new tenant.
type CreateTenant struct {
	Name          string
	Class         string // small, medium or large
	Mode          string // domain.ModeLive or domain.ModeTest; "": live
	DataResidency string // "": the deployment's region
	ExternalIDs   []string
	Metadata      map[string]string
}

// ChangeTenant is a request for a change; nil leaves a member unchanged.
type ChangeTenant struct {
	Name, Class, Status, DataResidency *string

	ExternalIDs *[]string          // all of them
	Metadata    *map[string]string // all of it

	LateUsage       *string
	CloseAfterHours **int // a pointer to nil: periods are closed by request only
}

// Bounds of a tenant's external ids and metadata. Lengths are in characters. An event with all of them stays below
// the size of a record.
const (
	MaxExternalIDs   = 16
	MaxMetadataKeys  = 50
	MaxMetadataKey   = 64
	MaxMetadataValue = 500
)

// MaxCloseAfterHours bounds the time from the end of a period until it is closed: a year.
const MaxCloseAfterHours = 366 * 24

// externalIDForm is the form of an external id: that of an eventId.
var externalIDForm = regexp.MustCompile(`^[!-~]{1,255}$`)

// IsExternalID reports whether a tenant could have the external id.
func IsExternalID(id string) bool { return externalIDForm.MatchString(id) }

// TenantClasses lists the classes of tenants.
func TenantClasses() []string { return []string{"small", "medium", "large"} }

func checkTenant(t *domain.Tenant) error {
	if err := checkName(t.Name); err != nil {
		return err
	}
	if err := commands.OneOf(t.Class, "class_invalid", "/class", TenantClasses()...); err != nil {
		return err
	}
	if !events.IsResidency(t.DataResidency) {
		return domain.Refuse("data_residency_invalid", "/dataResidency",
			"dataResidency must match ^[a-z][a-z0-9-]{0,31}$, e.g. eu-central-1")
	}
	if err := commands.OneOf(t.Status, "status_invalid", "/status", domain.TenantActive, domain.TenantSuspended); err != nil {
		return err
	}
	if err := commands.OneOf(t.Mode, "mode_invalid", "/mode", domain.ModeLive, domain.ModeTest); err != nil {
		return err
	}
	if err := checkExternalIDs(t.ExternalIDs); err != nil {
		return err
	}
	if err := commands.OneOf(t.LateUsage, "late_usage_invalid", "/lateUsage", events.LateUsageReject, events.LateUsageAdjust); err != nil {
		return err
	}
	if h := t.CloseAfterHours; h != nil && (*h < 1 || *h > MaxCloseAfterHours) {
		return domain.Refuse("close_after_hours_invalid", "/closeAfterHours",
			"closeAfterHours must be 1 to %d hours after the end of a period, or null", MaxCloseAfterHours)
	}
	if t.CloseAfterHours != nil && t.Mode == domain.ModeTest {
		return commands.RefuseTest("/closeAfterHours", "its periods are closed by request only")
	}
	return checkMetadata(t.Metadata)
}

func checkExternalIDs(ids []string) error {
	const code = "external_ids_invalid"
	if len(ids) > MaxExternalIDs {
		return domain.Refuse(code, "/externalIds", "externalIds has %d ids: at most %d are possible", len(ids), MaxExternalIDs)
	}
	for i, id := range ids {
		at := "/externalIds/" + strconv.Itoa(i)
		if !IsExternalID(id) {
			return domain.Refuse(code, at, "an external id has 1 to 255 printable ASCII characters without space ('!' to '~')")
		}
		if slices.Contains(ids[:i], id) {
			return domain.Refuse(code, at, "the external id %s is listed twice", id)
		}
	}
	return nil
}

func checkMetadata(metadata map[string]string) error {
	const code = "metadata_invalid"
	if len(metadata) > MaxMetadataKeys {
		return domain.Refuse(code, "/metadata", "metadata has %d keys: at most %d are possible", len(metadata), MaxMetadataKeys)
	}
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if !isText(key, MaxMetadataKey) || key == "" {
			return domain.Refuse(code, "/metadata", "a key of metadata has 1 to %d characters of text without control characters",
				MaxMetadataKey)
		}
		if !isText(metadata[key], MaxMetadataValue) {
			return domain.Refuse(code, "/metadata", "the value of %s must be a string of at most %d characters without control characters",
				strconv.Quote(key), MaxMetadataValue)
		}
	}
	return nil
}

// CreateTenant makes an ACTIVE tenant. It is a change of the platform, so that
// repetitions of one Idempotency-Key wait for each other. The event belongs to the
// tenant.
func (c *Commands) CreateTenant(ctx context.Context, req commands.Request, in CreateTenant) (domain.Tenant, error) {
	t := domain.Tenant{
		ID: c.NewID(), Name: in.Name, Class: in.Class, Status: domain.TenantActive, Mode: cmp.Or(in.Mode, domain.ModeLive),
		DataResidency: cmp.Or(in.DataResidency, c.Region, events.ResidencyUnspecified), CreatedAt: c.now(),
		ExternalIDs: in.ExternalIDs, Metadata: in.Metadata, LateUsage: events.LateUsageReject,
	}
	if err := checkTenant(&t); err != nil {
		return domain.Tenant{}, err
	}
	t.ExternalIDs = sortedIDs(t.ExternalIDs)
	return commands.Change(c.changing(ctx, events.Platform), req, func(tx Tx) (domain.Tenant, error) {
		if _, err := commands.AppendTenant(tx, &req, c.NewID(), c.now(), events.TenantCreated, &t); err != nil {
			return t, err
		}
		return t, saveExternalIDs(tx, nil, &t)
	})
}

// ChangeTenant changes a tenant; the keys of a SUSPENDED one are refused.
func (c *Commands) ChangeTenant(ctx context.Context, req commands.Request, id uuid.UUID, in ChangeTenant) (domain.Tenant, error) {
	return commands.Change(c.changing(ctx, id), req, func(tx Tx) (domain.Tenant, error) {
		t, err := commands.Changeable(tx, id)
		if err != nil {
			return domain.Tenant{}, err
		}
		before := *t
		set(&t.Name, in.Name)
		set(&t.Class, in.Class)
		set(&t.Status, in.Status)
		set(&t.DataResidency, in.DataResidency)
		set(&t.ExternalIDs, in.ExternalIDs)
		set(&t.Metadata, in.Metadata)
		set(&t.LateUsage, in.LateUsage)
		set(&t.CloseAfterHours, in.CloseAfterHours)
		if err := checkTenant(t); err != nil {
			return *t, err
		}
		if t.ExternalIDs = sortedIDs(t.ExternalIDs); same(*t, before) {
			return before, nil
		}
		if _, err := commands.AppendTenant(tx, &req, c.NewID(), c.now(), events.TenantChanged, t); err != nil {
			return *t, err
		}
		return *t, saveExternalIDs(tx, before.ExternalIDs, t)
	})
}

// sortedIDs returns the ids in the order in which they are stored.
func sortedIDs(ids []string) []string { return slices.Sorted(slices.Values(ids)) }

// saveExternalIDs saves the external ids of a tenant if they differ from the former ones. It refuses an id of
// another tenant.
func saveExternalIDs(tx ExternalIDs, former []string, t *domain.Tenant) error {
	if slices.Equal(former, t.ExternalIDs) {
		return nil
	}
	taken, err := tx.SaveExternalIDs(t.ID, t.ExternalIDs)
	if err == nil && taken != "" {
		err = domain.Refuse("external_id_taken", "/externalIds", "the external id %s belongs to another tenant", taken)
	}
	return err
}

func set[T any](field, to *T) {
	if to != nil {
		*field = *to
	}
}
