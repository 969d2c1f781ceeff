package usage

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/buffer"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

// ingest is the hot path: it decodes the body and encodes the answer without reflection.
func (s *handlers) ingest(w http.ResponseWriter, r *http.Request) error {
	x, start := edge.ExchangeOf(r.Context()), time.Now()
	if p := s.AdmitBacklog(); p != nil {
		return p
	}
	if err := s.Ingest.Admit(x.Caller); err != nil { // before its body is read
		return err
	}
	if p := api.ReadReplay(x, r.Header["Meterplex-Replay"]); p != nil {
		return p
	}
	items, single, err := s.readEvents(r)
	if err != nil {
		return err
	}
	if p := s.Edge.AdmitEvents(w.Header(), x.Caller.TenantID, len(items)); p != nil {
		return p
	}
	header, status, strict := w.Header(), http.StatusAccepted, preferStrict(r.Header["Prefer"])
	var verdicts []metering.EventVerdict
	if !strict {
		verdicts, err = s.Ingest.Do(r.Context(), x.Caller, items)
	} else {
		recorded := false
		if verdicts, recorded, err = s.Ingest.DoStrict(r.Context(), x.Caller, items); !recorded {
			status = http.StatusUnprocessableEntity
		}
	}
	if err != nil {
		return err
	}
	if strict {
		header["Preference-Applied"] = []string{handlingStrict}
	}
	sums := api.CountsOf(verdicts)
	if single && sums.Accepted+sums.Duplicates == 0 {
		s.Counted.Verdicts.Add(x.Tenant.Class, sums)
		return refusedCloudEvent(&verdicts[0])
	}
	body := appendVerdicts(buffer.Get(buffer.SizeFor(answerRoom*(1+len(verdicts)))), sums, verdicts)
	s.Counted.Seconds.Observe(time.Since(start).Seconds())
	s.Counted.Verdicts.Add(x.Tenant.Class, sums)
	header["Content-Type"] = api.JsonType
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone retries
	buffer.Put(body)     // Write has sent or copied it, with HTTP/1 and HTTP/2
	return nil
}

// handlingStrict is the preference to record all events of a batch or none (RFC 7240).
const handlingStrict = "handling=strict"

func preferStrict(prefer []string) bool {
	return strings.EqualFold(api.Preference(strings.Join(prefer, ","), "handling"), "strict")
}

// readEvents decodes the body by its media type, and reports whether it is a single CloudEvent.
// CloudEvents attributes in headers select binary mode, whatever JSON type the data has, or without a type.
func (s *handlers) readEvents(r *http.Request) (items []intake.BatchItem, single bool, err error) {
	binary := hasAttributes(r.Header)
	media := ""
	body, p := s.Edge.ReadBody(r, func(m string) bool {
		media = m
		switch {
		case binary && !strings.HasPrefix(m, "application/cloudevents"):
			return m == "" || m == api.MediaJSON || strings.HasSuffix(m, "+json") || strings.HasSuffix(m, "/json")
		default:
			return m == api.MediaJSON || m == intake.MediaCloudEvent || m == intake.MediaCloudEventBatch
		}
	})
	if p != nil {
		return nil, false, p
	}
	defer buffer.Put(body) // decoded items share no memory with the body
	switch {
	case media == intake.MediaCloudEvent:
		items, err = intake.DecodeCloudEvent(body)
		return items, true, err
	case media == intake.MediaCloudEventBatch:
		items, err = intake.DecodeCloudEventBatch(body)
	case binary:
		items, err = intake.DecodeCloudEventBinary(r.Header, body)
		return items, true, err
	default:
		items, err = intake.DecodeBatch(body)
	}
	return items, false, err
}

// refusedCloudEvent is the answer to a single CloudEvent that is not recorded. SDKs of CloudEvents read
// the status only, so 202 would report a delivery. 422, unless the status of the code is 404 or 409.
func refusedCloudEvent(v *metering.EventVerdict) *problem.Problem {
	p := problem.New(v.Code, v.Reason).At(v.Pointer)
	if p.Status != http.StatusNotFound && p.Status != http.StatusConflict {
		p.Status = http.StatusUnprocessableEntity
	}
	return p
}

func hasAttributes(header http.Header) bool {
	for name := range header {
		if strings.HasPrefix(name, "Ce-") {
			return true
		}
	}
	return false
}

// describeIngest documents the bodies that ingest decodes without reflection.
func describeIngest(op *huma.Operation, types api.Schemas) {
	cloudEvent := types.Of(cloudEvent{})
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		api.MediaJSON:          {Schema: types.Of(usageBatch{})},
		intake.MediaCloudEvent: {Schema: cloudEvent},
		// Without items: with them, Python clients of openapi-python-client fail on each body of the operation.
		intake.MediaCloudEventBatch: {Extensions: map[string]any{api.ItemSchema: cloudEvent},
			Schema: &huma.Schema{Type: huma.TypeArray, MinItems: new(1), MaxItems: new(intake.MaxBatch),
				Description: "Each item is a CloudEvent: x-item-schema."}},
	}}
	op.Parameters = []*huma.Param{
		{Name: "Content-Encoding", In: "header", Description: "gzip or zstd; the body may have 4 MiB after decompression.",
			Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"gzip", "zstd"}}},
		{Name: "Meterplex-Replay", In: "header", Description: "The batch comes from a queue that is emptied after an outage.",
			Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"offline"}}},
		{Name: "Prefer", In: "header", Description: "handling=strict: record no event if one would be refused; then the " +
			"answer is 422 (RFC 7240).",
			Schema: &huma.Schema{Type: huma.TypeString}, Example: handlingStrict},
	}
	op.Responses["202"] = &huma.Response{
		Description: "A result for each event, in the order they were sent; also if all are rejected.",
		Headers:     api.RateHeaders(),
		Content:     map[string]*huma.MediaType{api.MediaJSON: {Schema: types.Of(batchVerdict{})}},
	}
	refused := op.Responses["422"] // a problem, as describe declares it
	refused.Description = "A batch with `Prefer: handling=strict`: an event is refused, and no event is recorded; the result of the " +
		"others is `batch_refused`. " +
		"A single CloudEvent that is refused: a problem with the code of its result."
	refused.Content[api.MediaJSON] = &huma.MediaType{Schema: types.Of(batchVerdict{})}
}

// usageBatch, usageEvent and cloudEvent document bodies that package intake decodes.
type usageBatch struct {
	Events []usageEvent `json:"events" minItems:"1" nullable:"false"`
}

// TransformSchema implements huma.SchemaTransformer.
func (usageBatch) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	s.Properties["events"].MaxItems = new(intake.MaxBatch)
	return s
}

type usageEvent struct {
	EventID       string         `json:"eventId" minLength:"1" maxLength:"255" pattern:"^[!-~]+$"`
	Feature       api.LookupKey  `json:"feature"`
	Amount        int64          `json:"amount,omitempty" minimum:"0" maximum:"9007199254740991"`
	Timestamp     string         `json:"timestamp" format:"date-time"`
	Metadata      map[string]any `json:"metadata,omitempty" doc:"At most 4 KiB in canonical form and 5 levels deep."`
	Source        string         `json:"source,omitempty" maxLength:"1024" pattern:"^[!-~]+$"`
	Type          string         `json:"type,omitempty" enum:"usage,correction,retraction" default:"usage"`
	CorrectionRef string         `json:"correctionRef,omitempty" minLength:"1" maxLength:"255" pattern:"^[!-~]+$"`
}

type cloudEvent struct {
	_               struct{}       `additionalProperties:"true"`
	SpecVersion     string         `json:"specversion" enum:"1.0"`
	ID              string         `json:"id" maxLength:"255" doc:"The eventId."`
	Source          string         `json:"source" maxLength:"1024"`
	Type            string         `json:"type" doc:"The feature, if there is no subject."`
	Subject         string         `json:"subject,omitempty" doc:"The feature."`
	Time            string         `json:"time" format:"date-time"`
	DataContentType string         `json:"datacontenttype,omitempty"`
	Data            cloudEventData `json:"data"`
}

type cloudEventData struct {
	Amount        int64          `json:"amount,omitempty" minimum:"0" maximum:"9007199254740991" doc:"As in a UsageEvent."`
	Metadata      map[string]any `json:"metadata,omitempty"`
	Type          string         `json:"type,omitempty" enum:"usage,correction,retraction" default:"usage" doc:"As in a UsageEvent."`
	CorrectionRef string         `json:"correctionRef,omitempty" minLength:"1" maxLength:"255" pattern:"^[!-~]+$" doc:"As in a UsageEvent."`
}
