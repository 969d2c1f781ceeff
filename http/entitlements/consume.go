package entitlements

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/buffer"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

func (s *handlers) consumeOperations(t *api.Site) {
	const path = api.Prefix + "/entitlements"
	reservers := []string{commands.ScopeEntitlementsReserve}
	refusals := []int{http.StatusNotFound, http.StatusConflict}
	t.ServeRaw(api.Operation{Method: http.MethodPost, Path: path + "/{feature}/consume", Who: auth.Tenant, Scopes: reservers, Ingest: true,
		ID: "consume", Tag: "Entitlements",
		Summary: "Use an amount if the limit allows it",
		Description: "Checks the limit and records the usage in one transaction: a HARD limit is never passed, however many requests " +
			"arrive at once. " +
			"The time of the usage is the server's. After any failure send the same request again: it gets the first answer, or is " +
			"decided now. " +
			"A refused request is not remembered.", Problems: refusals}, describeConsume, s.consumeOne)
	t.ServeRaw(api.Operation{Method: http.MethodPost, Path: path + "/consume", Who: auth.Tenant, Scopes: reservers, Ingest: true,
		ID: "consumeTogether", Tag: "Entitlements",
		Summary: "Use amounts of several features, all or none",
		Description: "At most 20 items, each with its feature and eventId. If one is refused, no item is recorded; errors[].pointer " +
			"names the first.", Problems: refusals},
		describeConsumeTogether, s.consumeTogether)
}

func (s *handlers) consumeOne(w http.ResponseWriter, r *http.Request) error {
	feature, err := featureIn(r)
	if err != nil {
		return err
	}
	answers, err := s.consume(w, r, func(body []byte) ([]intake.Consumption, error) {
		c, err := intake.DecodeConsume(body, feature)
		return []intake.Consumption{c}, err
	}, func(int) string { return "" })
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, &answers[0])
}

// consumedTogether is the answer about several items, in their order.
type consumedTogether struct {
	Data []metering.Consumed `json:"data" nullable:"false"`
}

func (s *handlers) consumeTogether(w http.ResponseWriter, r *http.Request) error {
	answers, err := s.consume(w, r, intake.DecodeConsumes, itemAt)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, &consumedTogether{answers})
}

// itemAt returns the pointer of an item of a body.
func itemAt(i int) string { return "/items/" + strconv.Itoa(i) }

func (s *handlers) consume(w http.ResponseWriter, r *http.Request, decode func([]byte) ([]intake.Consumption, error),
	at func(int) string) (answers []metering.Consumed, err error) {
	err = s.decide(w, r, func(body []byte) (asking, error) {
		list, err := decode(body)
		return asking{len(list), len(list), func(ctx context.Context, by commands.Caller) (known int, err error) {
			answers, known, err = s.Quotas.Consume(ctx, by, list, at)
			return known, err
		}}, err
	})
	return answers, err
}

// asking is a decoded request against limits.
type asking struct {
	items, usage int // how many items it has, and how many events of usage it may record
	// decide returns how many of those events were known.
	decide func(ctx context.Context, by commands.Caller) (known int, err error)
}

// decide serves a request against limits.
func (s *handlers) decide(w http.ResponseWriter, r *http.Request, decode func(body []byte) (asking, error)) error {
	x, start := edge.ExchangeOf(r.Context()), time.Now()
	if p := s.AdmitBacklog(); p != nil {
		return p
	}
	if err := s.Quotas.Admit(x.Caller); err != nil {
		return err
	}
	if p := api.ReadReplay(x, r.Header["Meterplex-Replay"]); p != nil {
		return p
	}
	var body []byte
	if r.Method != http.MethodDelete {
		var p *problem.Problem
		if body, p = s.Edge.ReadBody(r, func(media string) bool { return media == api.MediaJSON }); p != nil {
			return p
		}
	}
	in, err := decode(body)
	buffer.Put(body) // decoded requests share no memory with the body
	if err != nil {
		return err
	}
	if p := s.Edge.AdmitEvents(w.Header(), x.Caller.TenantID, in.items); p != nil {
		return p
	}
	known, err := in.decide(r.Context(), x.Caller)
	s.Counted.Seconds.Observe(time.Since(start).Seconds())
	s.Counted.Verdicts.Decided(x.Tenant.Class, in.usage, known, err)
	return err
}

func writeJSON(w http.ResponseWriter, status int, answer any) error {
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	w.Header()["Content-Type"] = api.JsonType
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone sends the same request again
	return nil
}

// newConsumption and newConsumptions document bodies that package intake decodes.
type newConsumption struct {
	EventID  string         `json:"eventId" minLength:"1" maxLength:"255" pattern:"^[!-~]+$"`
	Amount   int64          `json:"amount" minimum:"1" maximum:"9007199254740991" doc:"Digits only."`
	Metadata map[string]any `json:"metadata,omitempty" doc:"At most 4 KiB in canonical form and 5 levels deep."`
}

type newItem struct {
	Feature  api.LookupKey  `json:"feature"`
	EventID  string         `json:"eventId" minLength:"1" maxLength:"255" pattern:"^[!-~]+$"`
	Amount   int64          `json:"amount" minimum:"1" maximum:"9007199254740991" doc:"Digits only."`
	Metadata map[string]any `json:"metadata,omitempty" doc:"At most 4 KiB in canonical form and 5 levels deep."`
}

type newConsumptions struct {
	Items []newItem `json:"items" minItems:"1" maxItems:"20" nullable:"false"`
}

// consumption documents metering.Consumed, and consumptions the answer about several items.
type consumption struct {
	Allowed   bool            `json:"allowed" doc:"true: the amount is granted and recorded."`
	Feature   string          `json:"feature"`
	EventID   string          `json:"eventId"`
	Amount    int64           `json:"amount"`
	PeriodKey string          `json:"periodKey"`
	Limit     *int64          `json:"limit" doc:"null: no limit."`
	Used      *json.Number    `json:"used" nullable:"true" doc:"After this amount; null for METERED features, which have no account."`
	Held      *json.Number    `json:"held" nullable:"true" doc:"Held by reservations; null for METERED features."`
	Remaining *json.Number    `json:"remaining" nullable:"true" doc:"Remaining amount at the decision; null: no limit."`
	ResetAt   *time.Time      `json:"resetAt" doc:"null if the period never resets."`
	Position  events.Position `json:"position"`
}

type consumptions struct {
	Data []consumption `json:"data" nullable:"false"`
}

func describeConsume(op *huma.Operation, types api.Schemas) {
	describeRequest(op, types, newConsumption{}, consumption{})
	op.Parameters = append(op.Parameters, pathParam("feature"))
}

func describeConsumeTogether(op *huma.Operation, types api.Schemas) {
	describeRequest(op, types, newConsumptions{}, consumptions{})
}

func describeRequest(op *huma.Operation, types api.Schemas, body, answer any) {
	if body != nil {
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{api.MediaJSON: {Schema: types.Of(body)}}}
	}
	op.Parameters = []*huma.Param{{Name: "Meterplex-Replay", In: "header",
		Description: "The request comes from a queue that is emptied after an outage.",
		Schema:      &huma.Schema{Type: huma.TypeString, Enum: []any{"offline"}}}}
	op.Responses["200"] = &huma.Response{
		Description: "Granted and recorded, now or by the same request before.",
		Headers:     api.RateHeaders(),
		Content:     map[string]*huma.MediaType{api.MediaJSON: {Schema: types.Of(answer)}},
	}
}
