package meterplex

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// Account is what is left of a limit.
type Account struct {
	Limit     *int64     `json:"limit,string"` // nil: no limit
	Used      *int64     `json:"used,string"`  // nil: the feature has no account
	Held      *int64     `json:"held,string"`  // by reservations
	Remaining *int64     `json:"remaining,string"`
	ResetAt   *time.Time `json:"resetAt"` // nil: never
}

// ConsumeRequest asks for an amount of a feature.
type ConsumeRequest struct {
	Feature  string
	Amount   int64          // 1 to 9007199254740991
	EventID  string         // of the usage; default: a random UUIDv7
	Metadata map[string]any // as of an Event
}

// Consumption is usage that a limit allowed and that is recorded.
type Consumption struct {
	Allowed   bool   `json:"allowed"`
	Feature   string `json:"feature"`
	EventID   string `json:"eventId"`
	Amount    int64  `json:"amount,string"`
	PeriodKey string `json:"periodKey"` // e.g. 2026-11
	Account          // after the amount
	Position  string `json:"position"`
	Raw
}

// Raw is the whole answer of the service, also members that this version does not know.
type Raw struct {
	JSON json.RawMessage `json:"-"`
}

func (r *Raw) keep(whole json.RawMessage) { r.JSON = whole }

// Consume checks the limit and records the usage in one step. The error has the code quota_exceeded, and the Account, if the limit does not
// allow the amount.
//
// It is repeated until the service answers or ctx ends (without a deadline: 30 s). Then the error has the code unknown_outcome and the ID
// of the usage: call again with this EventID to learn the outcome; it counts once. The same holds for Reserve, Commit, Extend and Release.
func (c *Client) Consume(ctx context.Context, r ConsumeRequest) (*Consumption, error) {
	if r.EventID == "" {
		r.EventID = newID()
	}
	metadata, err := metadataOf(r.Metadata)
	if err != nil {
		return nil, err
	}
	return write[Consumption](ctx, c, request{method: http.MethodPost, path: entitlement(r.Feature, "consume"), id: r.EventID,
		member: "eventId", body: struct {
			EventID  string          `json:"eventId"`
			Amount   int64           `json:"amount"`
			Metadata json.RawMessage `json:"metadata,omitempty"`
		}{r.EventID, r.Amount, metadata}})
}

func metadataOf(metadata map[string]any) (json.RawMessage, error) {
	const member = len(`,"metadata":`)
	b, err := appendMetadata(nil, metadata)
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return b[member:], nil
}

// entitlement returns a path below a feature.
func entitlement(segments ...string) string {
	path := "/api/v1/entitlements"
	for _, s := range segments {
		path += "/" + url.PathEscape(s)
	}
	return path
}

// raw is an answer that keeps its JSON.
type raw[T any] interface {
	*T
	keep(json.RawMessage)
}

// write sends a request that has its effect once by its id.
func write[T any, P raw[T]](ctx context.Context, c *Client, r request) (P, error) {
	if !eventIDForm.MatchString(r.id) {
		return nil, invalid("invalid_argument", "The id %.300q must have 1 to 255 printable ASCII characters without space", r.id)
	}
	return get[T, P](ctx, c, r)
}

// get sends a request and decodes its answer.
func get[T any, P raw[T]](ctx context.Context, c *Client, r request) (P, error) {
	var whole json.RawMessage
	if err := c.call(ctx, r, &whole); err != nil {
		return nil, err
	}
	return decode[T, P](whole)
}

func decode[T any, P raw[T]](whole json.RawMessage) (P, error) {
	answer := P(new(T))
	if err := json.Unmarshal(whole, answer); err != nil {
		e := newError("answer_invalid", err, "The answer cannot be read")
		e.JSON = whole
		return nil, e
	}
	answer.keep(whole)
	return answer, nil
}

// ReserveRequest asks to hold an amount of a feature.
type ReserveRequest struct {
	Feature       string
	Amount        int64         // 1 to 9007199254740991
	ReservationID string        // default: a random UUIDv7
	TTL           time.Duration // how long it is held, 1 s to 24 h; default 60 s
}

// Reservation is an amount that is held, or was.
type Reservation struct {
	ReservationID string    `json:"reservationId"`
	Feature       string    `json:"feature"`
	Amount        int64     `json:"amount,string"`
	State         string    `json:"state"` // HELD, COMMITTED, RELEASED, EXPIRED
	PeriodKey     string    `json:"periodKey"`
	ExpiresAt     time.Time `json:"expiresAt"`
	Released      *int64    `json:"released,string"` // the part that was not used, of an ended one
	Account                 // not in lists
	Position      string    `json:"position"`
	// Of lists only.
	EventID     string     `json:"eventId"`          // of the committed usage
	Committed   *int64     `json:"committed,string"` // its amount
	EndedAt     *time.Time `json:"endedAt"`
	EndPosition string     `json:"endPosition"`
	Raw
}

const stateHeld = "HELD"

// Reserve holds an amount until it is committed or released, or its time is over. The error has the code quota_exceeded if the limit does
// not allow it, and reservation_ended if the ReservationID is of a reservation that has ended.
func (c *Client) Reserve(ctx context.Context, r ReserveRequest) (*Reservation, error) {
	if r.ReservationID == "" {
		r.ReservationID = newID()
	}
	body := struct {
		ReservationID string `json:"reservationId"`
		Amount        int64  `json:"amount"`
		TTLSeconds    int64  `json:"ttlSeconds,omitempty"`
	}{r.ReservationID, r.Amount, seconds(r.TTL)}
	held, err := c.reservation(ctx, http.MethodPost, r.ReservationID, entitlement(r.Feature, "reservations"), body)
	if err == nil && held.State != stateHeld {
		e := newError("reservation_ended", nil, "The reservation %s is %s and holds nothing", r.ReservationID, held.State)
		e.ID, e.State, e.JSON = r.ReservationID, held.State, held.JSON
		return nil, e
	}
	return held, err
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// CommitRequest uses a held amount.
type CommitRequest struct {
	Feature       string
	ReservationID string
	Amount        int64 // used
	// of the usage; default: the ReservationID (above 249 characters: the first 32 hex digits of its SHA-256) and "-usage"
	EventID string
	// Overage records an Amount above the held one, because it has been used.
	Overage bool
}

// Commitment is the recorded usage of a reservation.
type Commitment struct {
	ReservationID string `json:"reservationId"`
	Feature       string `json:"feature"`
	State         string `json:"state"` // COMMITTED
	EventID       string `json:"eventId"`
	Amount        int64  `json:"amount,string"`
	Released      int64  `json:"released,string"` // the held part that is not used
	PeriodKey     string `json:"periodKey"`
	Account              // after the amount
	Position      string `json:"position"`
	Raw
}

// Commit records the used amount and releases the rest.
func (c *Client) Commit(ctx context.Context, r CommitRequest) (*Commitment, error) {
	if r.EventID == "" {
		r.EventID = usageOf(r.ReservationID)
	}
	body := struct {
		EventID string `json:"eventId"`
		Amount  int64  `json:"amount"`
		Overage string `json:"overage,omitempty"`
	}{r.EventID, r.Amount, ""}
	if r.Overage {
		body.Overage = "record"
	}
	path := entitlement(r.Feature, "reservations", r.ReservationID, "commit")
	return write[Commitment](ctx, c, request{method: http.MethodPost, path: path, id: r.EventID, member: "eventId", body: body})
}

// usageOf returns the id of a reservation's usage: the same for each attempt to commit it, in every language.
func usageOf(reservationID string) string {
	const suffix, most = "-usage", 255
	if len(reservationID)+len(suffix) <= most {
		return reservationID + suffix
	}
	sum := sha256.Sum256([]byte(reservationID))
	return hex.EncodeToString(sum[:])[:32] + suffix
}

// Extend holds an amount for ttl from now, or as long as before if that is longer.
func (c *Client) Extend(ctx context.Context, feature, reservationID string, ttl time.Duration) (*Reservation, error) {
	return c.reservation(ctx, http.MethodPost, reservationID, entitlement(feature, "reservations", reservationID, "extend"),
		map[string]int64{"ttlSeconds": seconds(ttl)})
}

// Release ends a reservation without usage.
func (c *Client) Release(ctx context.Context, feature, reservationID string) (*Reservation, error) {
	return c.reservation(ctx, http.MethodDelete, reservationID, entitlement(feature, "reservations", reservationID), nil)
}

func (c *Client) reservation(ctx context.Context, method, id, path string, body any) (*Reservation, error) {
	return write[Reservation](ctx, c, request{method: method, path: path, id: id, member: "reservationId", body: body})
}

const (
	defaultTTL   = time.Minute
	settleWithin = 2 * time.Minute // bounds the commit or release after work whose context has ended
)

// WithReservation holds an amount, e.g. an estimate, calls work, and commits the amount that work returns, also if it is above the held
// one: it has been used. If work returns 0 or fails without an amount, the hold is released. While work runs, the hold is extended.
//
// The work is not called if the amount cannot be held. Its error is returned beside the commitment.
func (c *Client) WithReservation(ctx context.Context, r ReserveRequest, work func(context.Context) (used int64, err error)) (*Commitment,
	error) {
	if r.TTL = or(r.TTL, defaultTTL); r.ReservationID == "" {
		r.ReservationID = newID()
	}
	if _, err := c.Reserve(ctx, r); err != nil {
		if e := (*Error)(nil); errors.As(err, &e) && e.Code == "unknown_outcome" {
			releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.options.AttemptTimeout)
			defer cancel()
			_, _ = c.Release(releasing, r.Feature, r.ReservationID) // else it ends by itself
		}
		return nil, err
	}
	used, failed := c.held(ctx, r, work)
	if used < 0 {
		used, failed = 0, errors.Join(failed, invalid("amount_invalid", "The work has used %d", used))
	}
	settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	if used == 0 {
		if _, err := c.Release(settling, r.Feature, r.ReservationID); err != nil {
			return nil, errors.Join(failed, err)
		}
		return nil, failed
	}
	done, err := c.Commit(settling, CommitRequest{Feature: r.Feature, ReservationID: r.ReservationID, Amount: used, Overage: true})
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	return done, failed
}

// held calls work and extends the hold until it returns. If work panics, the hold is released.
func (c *Client) held(ctx context.Context, r ReserveRequest, work func(context.Context) (int64, error)) (int64, error) {
	extending, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(max(r.TTL, time.Second) / 3)
		defer ticks.Stop()
		for {
			select {
			case <-extending.Done():
				return
			case <-ticks.C:
				_, _ = c.Extend(extending, r.Feature, r.ReservationID, r.TTL) // the commit reports a hold that has ended
			}
		}
	}()
	returned := false
	defer func() {
		stop()
		<-ended
		if !returned {
			settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
			defer cancel()
			_, _ = c.Release(settling, r.Feature, r.ReservationID)
		}
	}()
	used, err := work(ctx)
	returned = true
	return used, err
}
