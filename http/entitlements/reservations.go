package entitlements

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/entitlements"
)

func (s *handlers) reservationOperations(t *api.Site) {
	const path = api.Prefix + "/entitlements"
	const list, one = path + "/{feature}/reservations", path + "/{feature}/reservations/{reservationId}"
	reservers := []string{commands.ScopeEntitlementsReserve}
	readers := []string{commands.ScopeEntitlementsReserve, commands.ScopeEntitlementsRead, commands.ScopeBilling, commands.ScopeAudit}
	refusals := []int{http.StatusNotFound, http.StatusConflict}
	write := func(method, path, id, summary, description string) api.Operation {
		return api.Operation{Method: method, Path: path, Who: auth.Tenant, Scopes: reservers, Ingest: true, ID: id, Tag: "Entitlements",
			Summary: summary, Description: description, Problems: refusals}
	}
	t.ServeRaw(write(http.MethodPost, list, "reserve", "Hold an amount if the limit allows it",
		"The amount is held until it is committed or released, or until ttlSeconds are over. Idempotent by reservationId: the same "+
			"request again is 200 with the reservation as it is."),
		describeHold, s.holdOne)
	t.ServeRaw(write(http.MethodPost, path+"/reservations", "reserveTogether", "Hold amounts of several features, all or none",
		"At most 20 items, each with its feature and reservationId. If one is refused, no item is held; errors[].pointer names the first."),
		describeHoldTogether, s.holdTogether)
	t.ServeRaw(write(http.MethodPost, one+"/commit", "commitReservation", "Use at most the held amount",
		"Records the usage and releases the rest in one transaction. It counts in the subscription and the period of the hold, at the "+
			"server's time. "+
			"After any failure send the same request again: it gets the first answer, or is decided now."), describeCommit, s.commit)
	t.ServeRaw(write(http.MethodPost, one+"/extend", "extendReservation", "Hold an amount longer",
		"The reservation lasts ttlSeconds from now, or as long as before if that is longer."), describeExtend, s.extend)
	t.ServeRaw(write(http.MethodDelete, one, "releaseReservation", "Release a held amount",
		"Ends the reservation without usage. A repetition gets the first answer."), describeRelease, s.release)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: list, Who: auth.Either, Scopes: readers, ID: "listReservations",
		Tag: "Entitlements", Summary: "List reservations",
		Description: "Those of a feature, in the order of their ids. Ended ones are listed for 7 days; their events remain.",
		Problems:    []int{http.StatusNotFound}}, s.listReservations)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Either, Scopes: readers, ID: "getReservation",
		Tag: "Entitlements", Summary: "Read a reservation",
		Description: "Its state, and the event of its usage if it is committed. Ended ones are kept for 7 days.",
		Problems:    []int{http.StatusNotFound}}, s.getReservation)
}

func (s *handlers) holdOne(w http.ResponseWriter, r *http.Request) error {
	feature, err := featureIn(r)
	if err != nil {
		return err
	}
	answers, known, err := s.hold(w, r, func(body []byte) ([]intake.Holding, error) {
		c, err := intake.DecodeHold(body, feature)
		return []intake.Holding{c}, err
	}, func(int) string { return "" })
	if err != nil {
		return err
	}
	return writeJSON(w, statusOfHold(known, 1), &answers[0])
}

// heldTogether is the answer about several items, in their order.
type heldTogether struct {
	Data []metering.Reserved `json:"data" nullable:"false"`
}

func (s *handlers) holdTogether(w http.ResponseWriter, r *http.Request) error {
	answers, known, err := s.hold(w, r, intake.DecodeHolds, itemAt)
	if err != nil {
		return err
	}
	return writeJSON(w, statusOfHold(known, len(answers)), &heldTogether{answers})
}

// statusOfHold is 200 if all reservations were made before.
func statusOfHold(known, all int) int {
	if known == all {
		return http.StatusOK
	}
	return http.StatusCreated
}

func (s *handlers) hold(w http.ResponseWriter, r *http.Request, decode func([]byte) ([]intake.Holding, error),
	at func(int) string) (answers []metering.Reserved, known int, err error) {
	err = s.decide(w, r, func(body []byte) (asking, error) {
		list, err := decode(body)
		return asking{len(list), 0, func(ctx context.Context, by commands.Caller) (_ int, err error) {
			answers, known, err = s.Quotas.Hold(ctx, by, list, at)
			return 0, err
		}}, err
	})
	return answers, known, err
}

func (s *handlers) commit(w http.ResponseWriter, r *http.Request) error {
	feature, id, err := reservationIn(r)
	if err != nil {
		return err
	}
	var answer metering.Committed
	err = s.decide(w, r, func(body []byte) (asking, error) {
		c, err := intake.DecodeCommit(body, feature, id)
		return asking{1, 1, func(ctx context.Context, by commands.Caller) (known int, err error) {
			answer, known, err = s.Quotas.Commit(ctx, by, &c)
			return known, err
		}}, err
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, &answer)
}

func (s *handlers) extend(w http.ResponseWriter, r *http.Request) error {
	feature, id, err := reservationIn(r)
	if err != nil {
		return err
	}
	var answer metering.Reserved
	err = s.decide(w, r, func(body []byte) (asking, error) {
		lasts, err := intake.DecodeExtend(body)
		return asking{1, 0, func(ctx context.Context, by commands.Caller) (_ int, err error) {
			answer, err = s.Quotas.Extend(ctx, by, feature, id, lasts)
			return 0, err
		}}, err
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, &answer)
}

func (s *handlers) release(w http.ResponseWriter, r *http.Request) error {
	feature, id, err := reservationIn(r)
	if err != nil {
		return err
	}
	var answer metering.Reserved
	err = s.decide(w, r, func([]byte) (asking, error) {
		return asking{1, 0, func(ctx context.Context, by commands.Caller) (_ int, err error) {
			answer, err = s.Quotas.Release(ctx, by, feature, id)
			return 0, err
		}}, nil
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, &answer)
}

// featureIn returns the feature in the path.
func featureIn(r *http.Request) (string, error) {
	feature := api.PathValue(r, "feature")
	if refusal := domain.CheckFeatureKey(feature, ""); refusal != nil {
		return "", refusal
	}
	return feature, nil
}

// reservationIn returns the feature and the reservation in the path.
func reservationIn(r *http.Request) (feature, id string, err error) {
	if feature, err = featureIn(r); err != nil {
		return "", "", err
	}
	if id = api.PathValue(r, "reservationId"); !intake.IsReservationID([]byte(id)) {
		return "", "", reservationIDInvalid()
	}
	return feature, id, nil
}

func reservationIDInvalid() error {
	return &domain.Error{Code: "reservation_id_invalid",
		Message: "a reservationId has 1 to 255 printable ASCII characters without space ('!' to '~')"}
}

type reservationsRequest struct {
	Feature  string `path:"feature"`
	TenantID string `query:"tenantId" format:"uuid" doc:"Operator keys name the tenant here; a tenant's key names it already."`
	State    string `query:"state" enum:"HELD,COMMITTED,RELEASED,EXPIRED" doc:"Reservations in this state."`
	api.Paging
}

func (s *handlers) listReservations(ctx context.Context, in *reservationsRequest) (*api.Listed[entitlements.Reservation], error) {
	v, tenant, err := s.Subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	known, err := s.Reads.Entitlements.IsFeature(ctx, v, in.Feature)
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, api.Absent("feature_not_found")
	}
	l := api.List{"reservations", tenant.String(), in.Feature, in.State}
	return api.ListCatalogue(l, in.Paging, func(p commands.Page) ([]entitlements.Reservation, error) {
		return s.Reads.Entitlements.Reservations(ctx, v, entitlements.ReservationQuery{TenantID: tenant, Feature: in.Feature, State: in.State,
			After: p.After, Limit: p.Limit})
	}, func(r *entitlements.Reservation) string { return r.ReservationID })
}

type reservationRequest struct {
	Feature       string `path:"feature"`
	ReservationID string `path:"reservationId"`
	TenantID      string `query:"tenantId" format:"uuid" doc:"Operator keys name the tenant here; a tenant's key names it already."`
}

func (s *handlers) getReservation(ctx context.Context, in *reservationRequest) (*api.Answer[entitlements.Reservation], error) {
	v, tenant, err := s.Subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	if !domain.IsLookupKey(in.Feature) || !intake.IsReservationID([]byte(in.ReservationID)) {
		return nil, domain.ReservationNotFound()
	}
	found, err := s.Reads.Entitlements.Reservations(ctx, v, entitlements.ReservationQuery{TenantID: tenant, Feature: in.Feature,
		ID: in.ReservationID, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, domain.ReservationNotFound()
	}
	return api.AnswerOf(found[0], nil)
}

// The types below document bodies that package intake decodes, and the answers about them.
type newReservation struct {
	ReservationID string `json:"reservationId" minLength:"1" maxLength:"255" pattern:"^[!-~]+$"`
	Amount        int64  `json:"amount" minimum:"1" maximum:"9007199254740991" doc:"Digits only."`
	TTLSeconds    int    `json:"ttlSeconds,omitempty" minimum:"1" maximum:"86400" doc:"Seconds until the hold ends; 60 if absent."`
}

type newHeldItem struct {
	Feature       api.LookupKey `json:"feature"`
	ReservationID string        `json:"reservationId" minLength:"1" maxLength:"255" pattern:"^[!-~]+$"`
	Amount        int64         `json:"amount" minimum:"1" maximum:"9007199254740991" doc:"Digits only."`
	TTLSeconds    int           `json:"ttlSeconds,omitempty" minimum:"1" maximum:"86400" doc:"Seconds until the hold ends; 60 if absent."`
}

type newReservations struct {
	Items []newHeldItem `json:"items" minItems:"1" maxItems:"20" nullable:"false"`
}

type newCommit struct {
	EventID string `json:"eventId" minLength:"1" maxLength:"255" pattern:"^[!-~]+$"`
	Amount  int64  `json:"amount" minimum:"1" maximum:"9007199254740991" doc:"How much has been used. Digits only."`
	Overage string `json:"overage,omitempty" enum:"deny,record"`
}

type newExtension struct {
	TTLSeconds int `json:"ttlSeconds" minimum:"1" maximum:"86400" doc:"From now."`
}

type heldAmount struct {
	ReservationID string          `json:"reservationId"`
	Feature       string          `json:"feature"`
	Amount        int64           `json:"amount"`
	State         string          `json:"state" enum:"HELD,COMMITTED,RELEASED,EXPIRED"`
	Released      *int64          `json:"released,omitempty" nullable:"false"`
	PeriodKey     string          `json:"periodKey"`
	ExpiresAt     time.Time       `json:"expiresAt"`
	Limit         *int64          `json:"limit" doc:"null: no limit."`
	Used          *json.Number    `json:"used" nullable:"true"`
	Held          *json.Number    `json:"held" nullable:"true" doc:"By all reservations, after the request; null for METERED features."`
	Remaining     *json.Number    `json:"remaining" nullable:"true" doc:"Remaining amount at the decision; null: no limit."`
	ResetAt       *time.Time      `json:"resetAt" doc:"null if the period never resets."`
	Position      events.Position `json:"position"`
}

type heldAmounts struct {
	Data []heldAmount `json:"data" nullable:"false"`
}

type committedAmount struct {
	ReservationID string          `json:"reservationId"`
	Feature       string          `json:"feature"`
	State         string          `json:"state" enum:"COMMITTED"`
	EventID       string          `json:"eventId"`
	Amount        int64           `json:"amount" doc:"The recorded usage."`
	Released      int64           `json:"released" doc:"The held amount that is not used."`
	PeriodKey     string          `json:"periodKey"`
	Limit         *int64          `json:"limit" doc:"null: no limit."`
	Used          *json.Number    `json:"used" nullable:"true" doc:"After this amount; null for METERED features, which have no account."`
	Held          *json.Number    `json:"held" nullable:"true" doc:"By the other reservations; null for METERED features."`
	Remaining     *json.Number    `json:"remaining" nullable:"true" doc:"Remaining amount at the decision; null: no limit."`
	ResetAt       *time.Time      `json:"resetAt" doc:"null if the period never resets."`
	Position      events.Position `json:"position"`
}

func describeHold(op *huma.Operation, types api.Schemas) {
	describeRequest(op, types, newReservation{}, heldAmount{})
	op.Parameters = append(op.Parameters, pathParam("feature"))
	describeCreated(op, "Held.", "Made by the same request before; the state is the present one.")
}

func describeHoldTogether(op *huma.Operation, types api.Schemas) {
	describeRequest(op, types, newReservations{}, heldAmounts{})
	describeCreated(op, "Held.", "Made by the same request before; the states are the present ones.")
}

func describeCreated(op *huma.Operation, created, known string) {
	answer := *op.Responses["200"]
	answer.Description = created
	op.Responses["200"].Description, op.Responses["201"] = known, &answer
}

func describeCommit(op *huma.Operation, types api.Schemas) {
	describeRequest(op, types, newCommit{}, committedAmount{})
	op.Parameters = append(op.Parameters, pathParam("feature"), pathParam("reservationId"))
}

func describeExtend(op *huma.Operation, types api.Schemas) {
	describeRequest(op, types, newExtension{}, heldAmount{})
	op.Parameters = append(op.Parameters, pathParam("feature"), pathParam("reservationId"))
	op.Responses["200"].Description = "Held longer."
}

func describeRelease(op *huma.Operation, types api.Schemas) {
	describeRequest(op, types, nil, heldAmount{})
	op.Parameters = append(op.Parameters, pathParam("feature"), pathParam("reservationId"))
	op.Responses["200"].Description = "Released, now or by the same request before."
}

func pathParam(name string) *huma.Param {
	return &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}
}
