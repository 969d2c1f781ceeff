package stripe

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"

	stripego "github.com/stripe/stripe-go/v84"

	"github.com/meterplex/meterplex/domain/push"
)

// Codes of results that Stripe gave no code for.
const (
	codeUnreachable = "provider_unreachable"       // no connection was opened
	codeNoAnswer    = "provider_no_answer"         // the answer was lost
	codeUnexpected  = "provider_answer_unexpected" // the answer is not Stripe's, or half of it was lost
	codeKeyRefused  = "provider_key_refused"       // Stripe refuses the secret key
	codeInvalid     = "push_invalid"               // no request can carry the push
)

// Bounds of the words that are stored with a push.
const (
	maxCode   = 100
	maxReason = 500
)

// result returns the result of a push that an exchange showed. Only an answer of Stripe itself settles a push: proxies answer with the same
// statuses.
func (x *exchange) result(identifier, counted string, err error) push.Result {
	var refusal *stripego.Error
	stripes := errors.As(err, &refusal) && refusal.Type != ""
	r := push.Result{Outcome: push.Unknown, RetryAfter: x.retryAfter}
	switch {
	case x.status == 0 && !x.connected.Load():
		r.Outcome, r.Code, r.Reason = push.Later, codeUnreachable, errorText(err)
	case x.status == 0:
		r.Code, r.Reason = codeNoAnswer, errorText(err)
	case x.status == http.StatusTooManyRequests:
		r.Outcome, r.Code, r.Reason = push.Later, codeUnexpected, errorText(err)
	case x.status/100 == 2 && err == nil && counted == identifier:
		return push.Result{Outcome: push.Delivered}
	case stripes && x.status/100 == 4:
		r.Outcome = refused(refusal, x.status, identifier)
	default:
		r.Code, r.Reason = codeUnexpected, fmt.Sprintf("answer with status %d: %s", x.status, errorText(err))
	}
	if r.Outcome == push.Delivered {
		return push.Result{Outcome: push.Delivered}
	}
	if r.Outcome == push.Refused {
		r.RetryAfter = 0
	}
	switch {
	case r.Outcome == push.KeyRefused:
		r.Code, r.Reason = codeKeyRefused, keyRefused(x.status, refusal)
	case stripes:
		r.Code, r.Reason = codeOf(refusal), refusal.Msg
	}
	return r
}

// refusesKey reports whether an error of Stripe is about the secret key: Stripe has not looked at the request.
func refusesKey(status int, e *stripego.Error) bool {
	return e.Type != "" && (status == http.StatusUnauthorized || status == http.StatusForbidden)
}

// keyRefused says which setting to correct, and Stripe's words.
func keyRefused(status int, e *stripego.Error) string {
	return fmt.Sprintf("Stripe refuses the key of METERPLEX_STRIPE_KEY (status %d): %s", status, e.Msg)
}

// refused returns the meaning of a status 4xx with an error of Stripe.
func refused(e *stripego.Error, status int, identifier string) push.Outcome {
	switch {
	case exists(e, identifier):
		return push.Delivered
	case refusesKey(status, e):
		return push.KeyRefused
	case status == http.StatusConflict && e.Code == stripego.ErrorCodeIdempotencyKeyInUse:
		return push.Unknown // Stripe still works on another attempt of this push
	case status == http.StatusConflict:
		return push.Later // a lock
	case status == http.StatusRequestTimeout:
		return push.Unknown
	}
	return push.Refused
}

// codeOf returns Stripe's code of an error, or its type.
func codeOf(e *stripego.Error) string { return cmp.Or(string(e.Code), string(e.Type)) }

// exists reports whether Stripe refused a push because it counted the push before. Stripe documents the code for the newer version of its
// API, and sends the words without a code in this one.
func exists(e *stripego.Error, identifier string) bool {
	return e.Code == "duplicate_meter_event" ||
		e.Type == stripego.ErrorTypeInvalidRequest && strings.Contains(e.Msg, "event already exists with identifier") &&
			strings.Contains(e.Msg, identifier)
}

func errorText(err error) string {
	if err == nil {
		return "no meter event"
	}
	return err.Error()
}

func (p *Provider) codeCleaned(code string) string { return p.clean(code, maxCode) }

// clean returns a text of the other side that may be stored and logged: without the secret key, the hidden texts and control
// characters, and bounded. The key is replaced first: a hidden text may be a part of it.
func (p *Provider) clean(text string, limit int, hidden ...string) string {
	for _, secret := range append([]string{p.key()}, hidden...) {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "********")
		}
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + " …"
	}
	return text
}
