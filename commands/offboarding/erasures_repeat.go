package offboarding

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// ErasureFile is an erasure as it is kept outside the database.
type ErasureFile struct {
	TenantID    uuid.UUID `json:"tenantId"`
	Reason      string    `json:"reason"`
	RequestedAt time.Time `json:"requestedAt"`
}

func fileOf(e *domain.Erasure) ErasureFile {
	return ErasureFile{e.TenantID, e.Reason, e.RequestedAt.UTC()}
}

// ErasureFiles keeps erasures outside the database.
type ErasureFiles interface {
	// Save saves an erasure, durably, in place of an earlier one of the tenant.
	Save(ErasureFile) error
	// List returns all erasures. With an error it returns those that could be read.
	List() ([]ErasureFile, error)
}

// RepeatErasures begins erasures again that the database does not know, such as after the restore of an older backup, and saves those that
// have no file.
type RepeatErasures struct {
	Erasures *Erasures // with Files
	Tenants  commands.TenantReader
	Reader   ErasureReader

	logged map[uuid.UUID]time.Time // when a tenant that cannot be erased was logged
}

// erasureLogEvery is the time after which a tenant that cannot be erased is logged again.
const erasureLogEvery = time.Hour

// Look compares the files with the database once.
func (r *RepeatErasures) Look(ctx context.Context) error {
	list, faults := r.Erasures.Files.List()
	saved := map[uuid.UUID]bool{}
	for _, f := range list {
		saved[f.TenantID] = true
		faults = errors.Join(faults, r.repeat(ctx, f))
	}
	for p := (commands.Page{Limit: 100}); ; {
		known, err := r.Reader.Erasures(ctx, p)
		for _, e := range known {
			if p.After = e.TenantID.String(); !saved[e.TenantID] { // from before METERPLEX_ERASURES was set
				faults = errors.Join(faults, r.Erasures.Files.Save(fileOf(&e)))
			}
		}
		if len(known) < p.Limit {
			return errors.Join(faults, err)
		}
	}
}

func (r *RepeatErasures) repeat(ctx context.Context, f ErasureFile) error {
	if e, err := r.Reader.Erasure(ctx, f.TenantID); err != nil || e != nil {
		return err
	}
	t, err := r.Tenants.Tenant(ctx, f.TenantID)
	if err != nil || t == nil { // the backup is older than the tenant
		return err
	}
	if t.Status == domain.TenantArchived {
		_, err := r.Erasures.Start(ctx, commands.ServiceRequest(), f.TenantID, f.Reason)
		if err == nil {
			r.Erasures.Logger.WarnContext(ctx,
				"an erasure of personal data is repeated: the database did not know it, e.g. because an older backup was restored",
				"tenant", f.TenantID)
		}
		return err
	}
	if time.Since(r.logged[f.TenantID]) > erasureLogEvery {
		if r.logged == nil {
			r.logged = map[uuid.UUID]time.Time{}
		}
		r.logged[f.TenantID] = time.Now()
		r.Erasures.Logger.ErrorContext(ctx,
			"personal data that was erased is in the database again, of a tenant that is not ARCHIVED there: offboard it (meterplex "+
				"tenants offboard start), then it is erased by itself",
			"tenant", f.TenantID, "status", t.Status, "requested", f.RequestedAt)
	}
	return nil
}
