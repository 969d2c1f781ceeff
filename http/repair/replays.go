package repair

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) replayOperations(t *api.Site) {
	const path, one = api.Prefix + "/replays", api.Prefix + "/replays/{replayId}"
	gone := http.StatusNotFound
	admins := []string{commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path, Who: auth.Operator, Scopes: admins, ID: "replayRange", Tag: "Replays",
		Status: http.StatusAccepted, Summary: "Publish a range of the log again",
		Description: "For readers outside: every record is unchanged, plus the header `mp-replay: 1`. Our own consumers skip them; no " +
			"figure changes.",
		Problems: []int{gone}}, s.replayRange)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path + "/rewind", Who: auth.Operator, Scopes: admins, ID: "rewind",
		Tag: "Replays", Status: http.StatusAccepted,
		Summary: "Let the relay, or a consumer, go back",
		Description: "Without `consumer` the relay goes back and fills the topics again from the log: for a Kafka that " +
			"lost its data. " +
			"With it, that consumer reads again: that of usage.commands its topic, " +
			"the others the log from their checkpoints, which stay. Never forward, and no event is counted twice.",
		Problems: []int{gone}}, s.rewind)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: admins, ID: "listReplays", Tag: "Replays",
		Summary: "List replays", Description: "Newest first."}, s.listReplays)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: admins, ID: "getReplay", Tag: "Replays",
		Summary: "Read a replay", Description: "The progress of a replay, and its outcome.", Problems: []int{gone}}, s.getReplay)
}

// replayBody is a replay in its wire format.
type replayBody struct {
	ID         uuid.UUID    `json:"id" format:"uuid"`
	Kind       string       `json:"kind" enum:"range,relay,consumer" doc:"Kind of the replay: a range of the log, the relay, or a consumer."`
	State      string       `json:"state" enum:"RUNNING,DONE,FAILED"`
	Topic      string       `json:"topic,omitempty"`
	TenantID   *uuid.UUID   `json:"tenantId,omitempty" format:"uuid" doc:"Only this tenant's events."`
	Consumer   string       `json:"consumer,omitempty"`
	To         string       `json:"to,omitempty" doc:"The target of a rewind."`
	Reason     string       `json:"reason"`
	Failure    string       `json:"failure,omitempty" doc:"The reason for an early end."`
	WaitsFor   string       `json:"waitsFor,omitempty"`
	Records    int64        `json:"records" doc:"Published by a range so far."`
	Remaining  int64        `json:"remaining" doc:"Positions of the log that are still to be published again; of a relay that went back, too."`
	Partitions []replayPart `json:"partitions" nullable:"false"`
	CreatedAt  time.Time    `json:"createdAt"`
	EndedAt    *time.Time   `json:"endedAt,omitempty"`
}

// replayPart is a replay in one partition.
type replayPart struct {
	Partition int16  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to" doc:"The last position; of a rewind where it went back to."`
	Done      *int64 `json:"done,omitempty" doc:"Published up to here."`
}

// overdue is the age at which a pending rewind shows that no consumer is running: a
// consumer polls each second, and the session of a stopped one expires after 10 s.
const overdue = 30 * time.Second

// waitsFor returns the role whose instances do the replay. The service does not know
// which instances have the role; only the elapsed time shows that no instance is running.
func waitsFor(r *repair.Replay, now time.Time) string {
	switch {
	case r.State != repair.ReplayRunning:
		return ""
	case r.Kind == events.ReplayRange:
		return "an instance with the role relay"
	case now.Sub(r.CreatedAt) > overdue:
		return "an instance with the role commands, but no such instance seems to run: start one (serve --roles=commands), which then goes back"
	}
	return "an instance with the role commands"
}

func replayOf(r *repair.Replay, now time.Time) replayBody {
	b := replayBody{
		ID: r.ID, Kind: r.Kind, State: r.State, Topic: r.Topic, TenantID: r.TenantID, Consumer: r.Consumer, To: r.Target, Reason: r.Reason,
		Failure: r.Failure, WaitsFor: waitsFor(r, now), Remaining: r.Remaining, Partitions: []replayPart{}, CreatedAt: r.CreatedAt,
		EndedAt: r.EndedAt,
	}
	for i := range r.Units {
		u := &r.Units[i]
		b.Records += u.Records
		switch {
		case r.Kind == events.ReplayRange:
			b.Partitions = append(b.Partitions, replayPart{u.Partition, u.First, u.UpTo, &u.Cursor})
		case u.UpTo > u.Cursor: // the cursor moved back
			b.Partitions = append(b.Partitions, replayPart{u.Partition, u.UpTo, u.Cursor, nil})
		}
	}
	return b
}

func accepted(r repair.Replay, err error) (*api.Accepted[replayBody], error) {
	return &api.Accepted[replayBody]{Location: api.Prefix + "/replays/" + r.ID.String(), Body: replayOf(&r, r.CreatedAt)}, err
}

type rangeRequest struct {
	api.Idempotent
	Body struct {
		Topic    string `json:"topic" minLength:"1" maxLength:"100" doc:"The topic, e.g. usage.raw." example:"usage.raw"`
		From     string `json:"from,omitempty" minLength:"3" maxLength:"24" example:"17-4711"`
		To       string `json:"to,omitempty" minLength:"3" maxLength:"24" doc:"Last position."`
		TenantID string `json:"tenantId,omitempty" format:"uuid" doc:"Only this tenant's events."`
		FromTime string `json:"fromTime,omitempty" format:"date-time" doc:"Events recorded at this time or later, in all partitions."`
		ToTime   string `json:"toTime,omitempty" format:"date-time" doc:"Events recorded before this time; all if absent."`
		Reason   string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
	} `nameHint:"ReplayRange"`
}

func (s *handlers) replayRange(ctx context.Context, in *rangeRequest) (*api.Accepted[replayBody], error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	b := &in.Body
	request := repair.ReplayRange{Topic: b.Topic, Reason: b.Reason}
	if request.From, err = positionMember("/from", b.From); err != nil {
		return nil, err
	}
	if request.To, err = positionMember("/to", b.To); err != nil {
		return nil, err
	}
	if request.FromTime, err = timeMember("/fromTime", b.FromTime); err != nil {
		return nil, err
	}
	if request.ToTime, err = timeMember("/toTime", b.ToTime); err != nil {
		return nil, err
	}
	if b.TenantID != "" {
		if request.TenantID, err = api.IDOf(b.TenantID, "tenant_not_found"); err != nil {
			return nil, err
		}
	}
	return accepted(s.Replays.Range(ctx, req, request))
}

// positionMember parses a position of a body, nil if it is empty.
func positionMember(pointer, text string) (*events.Position, error) {
	if text == "" {
		return nil, nil
	}
	p, err := events.ParsePosition(text)
	if err != nil {
		return nil, &domain.Error{Code: "position_invalid", Message: err.Error(), Pointer: pointer}
	}
	return &p, nil
}

// timeMember parses a time of a body, zero if it is empty.
func timeMember(pointer, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, fault := domain.ParseTime(text)
	if fault != nil {
		return t, &domain.Error{Code: "time_invalid", Message: fault.Message, Pointer: pointer}
	}
	return t, nil
}

type rewindRequest struct {
	api.Idempotent
	Body struct {
		Consumer  string   `json:"consumer,omitempty" minLength:"1" maxLength:"100" example:"meterplex-usage-commands"`
		To        string   `json:"to,omitempty" minLength:"1" maxLength:"40" doc:"start, or a time. Needed without positions."`
		Positions []string `json:"positions,omitempty" minItems:"1" maxItems:"32" nullable:"false"`
		Reason    string   `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
	} `nameHint:"Rewind"`
}

func (s *handlers) rewind(ctx context.Context, in *rewindRequest) (*api.Accepted[replayBody], error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	request := repair.Rewind{Consumer: in.Body.Consumer, To: in.Body.To, Reason: in.Body.Reason}
	for _, text := range in.Body.Positions {
		p, err := positionMember("/positions", text)
		if err != nil || p == nil {
			return nil, &domain.Error{Code: "position_invalid", Message: "a position is partition-number, e.g. 17-4711",
				Pointer: "/positions"}
		}
		request.Positions = append(request.Positions, *p)
	}
	return accepted(s.Replays.Rewind(ctx, req, request))
}

func (s *handlers) listReplays(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[replayBody], error) {
	now := s.Now()
	return api.ListCatalogue(api.List{"replays"}, in.Paging, func(p commands.Page) ([]replayBody, error) {
		found, err := s.ReplayReader.Replays(ctx, p)
		return api.BodiesOf(found, func(r *repair.Replay) replayBody { return replayOf(r, now) }), err
	}, func(b *replayBody) string { return b.ID.String() })
}

func (s *handlers) getReplay(ctx context.Context, in *struct {
	ReplayID string `path:"replayId" format:"uuid"`
}) (*api.Answer[replayBody], error) {
	id, err := api.IDOf(in.ReplayID, "replay_not_found")
	if err != nil {
		return nil, err
	}
	r, err := api.Present(s.ReplayReader.Replay(ctx, id))("replay_not_found")
	return api.AnswerOf(replayOf(&r, s.Now()), err)
}
