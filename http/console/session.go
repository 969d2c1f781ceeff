package console

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
)

// usedEvery is the precision of the time of a session's last use.
const usedEvery = time.Minute

// cookieName has the prefix __Host-: a browser accepts it only with Secure, for the whole host and no other (RFC 6265bis, section 4.1.3.2).
const cookieName = "__Host-meterplex"

// visitor is the holder of a key who is signed in.
type visitor struct {
	token   [sha256.Size]byte // of the session
	mask    [sha256.Size]byte // of the token of this answer's forms: random
	session commands.ConsoleSession
	keyHash [sha256.Size]byte
	caller  commands.Caller
	Tenant  *domain.Tenant // nil: an operator
}

// errSignedOut is the error of a request without a session.
var errSignedOut = errors.New("not signed in")

// visitorOf returns the visitor of a request; errSignedOut without a session that is open, or if its key may not be used any more.
func (c *Console) visitorOf(r *http.Request) (*visitor, error) {
	cookies := r.CookiesNamed(cookieName)
	if len(cookies) != 1 { // two of one name: another site of the host may have set one
		return nil, errSignedOut
	}
	token, ok := decodeToken(cookies[0].Value)
	if !ok {
		return nil, errSignedOut
	}
	v := &visitor{token: token, mask: c.NewToken()}
	if err := c.confirm(r, v); err != nil {
		return nil, err
	}
	return v, nil
}

// sessionTime bounds a read of a session and of its key, and the record of its use: the edge does not bound the time of a page.
const sessionTime = 5 * time.Second

// confirm reads the session of a visitor and its key.
func (c *Console) confirm(r *http.Request, v *visitor) error {
	ctx, cancel := context.WithTimeout(r.Context(), sessionTime)
	defer cancel()
	session, err := c.Sessions.Session(ctx, sha256.Sum256(v.token[:]))
	if err != nil {
		return err
	}
	if session == nil || session.Ended(c.Now()) {
		return errSignedOut
	}
	v.session = *session
	var ok bool
	if v.keyHash, ok = c.Keys.HashOfKey(session.KeyID, session.KeyHash); !ok {
		return errSignedOut
	}
	v.caller, v.Tenant, err = c.Keys.Identify(ctx, v.keyHash)
	if refused := (*domain.Error)(nil); errors.As(err, &refused) {
		return errSignedOut
	}
	return err
}

// used records that a session is used, at most once a minute.
func (c *Console) used(r *http.Request, v *visitor) error {
	now := c.Now()
	if now.Sub(v.session.UsedAt) < usedEvery {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), sessionTime)
	defer cancel()
	return c.Sessions.UseSession(ctx, sha256.Sum256(v.token[:]), now)
}

// formToken is the token that each form of a session holds against forged requests. It reveals no part of the session's token. Each answer
// has another mask, so the length of compressed pages does not help to guess it (BREACH).
func (v *visitor) formToken() string {
	sum := v.unmasked()
	subtle.XORBytes(sum[:], sum[:], v.mask[:])
	return base64.RawURLEncoding.EncodeToString(append(v.mask[:], sum[:]...))
}

func (v *visitor) unmasked() [sha256.Size]byte {
	return sha256.Sum256(append([]byte("meterplex console form\x00"), v.token[:]...))
}

// hasFormToken reports whether a token is one of the forms of the visitor's session.
func (v *visitor) hasFormToken(text string) bool {
	token, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(token) != 2*sha256.Size {
		return false
	}
	sum := v.unmasked()
	subtle.XORBytes(token, token[:sha256.Size], token[sha256.Size:])
	return subtle.ConstantTimeCompare(sum[:], token[:sha256.Size]) == 1
}

// checkForm refuses forms of other sites and of other sessions. The policy no-referrer makes browsers send the Origin null with a form of
// our own, together with Sec-Fetch-Site: same-origin; without that header, the Origin null is refused.
func checkForm(r *http.Request, v *visitor) error {
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		return problem.New("forbidden", "The form was sent by a page of another site. Open the page of the console, and send its form")
	}
	if v != nil && !v.hasFormToken(r.PostForm.Get("token")) {
		return problem.New("forbidden", "The form belongs to no session, or to another one. Open the page again, and send its form")
	}
	return nil
}

func decodeToken(text string) (token [sha256.Size]byte, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != len(token) {
		return token, false
	}
	return [sha256.Size]byte(b), true
}

func encodeToken(token [sha256.Size]byte) string {
	return base64.RawURLEncoding.EncodeToString(token[:])
}

// open opens a session of a key, ends the browser's last one, and sets the cookie.
func (c *Console) open(w http.ResponseWriter, r *http.Request, key uuid.UUID) error {
	if last, err := c.visitorOf(r); err == nil {
		if err := c.Sessions.EndSession(r.Context(), sha256.Sum256(last.token[:])); err != nil {
			return err
		}
	}
	token := c.NewToken()
	if err := c.Sessions.OpenSession(r.Context(), sha256.Sum256(token[:]), key, c.Now()); err != nil {
		return err
	}
	setCookie(w, encodeToken(token), int(commands.ConsoleSessionTime.Seconds()))
	return nil
}

func setCookie(w http.ResponseWriter, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: value, Path: "/", MaxAge: seconds, Secure: true, HttpOnly: true,
		SameSite: http.SameSiteStrictMode})
}

// allowed reports whether a visitor may use a route.
func (v *visitor) allowed(route *auth.Route) *problem.Problem {
	return route.Authorize(v.caller, v.Tenant != nil)
}
