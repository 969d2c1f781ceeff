package console

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

// Addresses of sessions.
const (
	signInPath  = Prefix + "/sign-in"
	signOutPath = Prefix + "/sign-out"
	linksPath   = Prefix + "/link/"
	linkPath    = linksPath + "{link}"
	homePath    = Prefix
)

// sessionRoutes need no session.
func (c *Console) sessionRoutes() []Route {
	public := func(method, path string, parameters []string, serve func(http.ResponseWriter, *http.Request) error) Route {
		return Route{auth.Route{Method: method, Path: path, Who: auth.Public},
			c.handler(func(w http.ResponseWriter, r *http.Request) error {
				if _, err := parseQuery(r.URL.RawQuery, parameters); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(r.Context(), edge.RequestTime)
				defer cancel()
				return serve(w, r.WithContext(ctx))
			})}
	}
	return []Route{
		public(http.MethodGet, homePath, nil, c.home),
		public(http.MethodGet, signInPath, []string{"next"}, func(w http.ResponseWriter, r *http.Request) error {
			c.write(w, r, http.StatusOK, "signin.html", &view{c: c, r: r, Title: "Sign in", Data: signInData(r)})
			return nil
		}),
		public(http.MethodPost, signInPath, nil, c.signIn),
		public(http.MethodPost, signOutPath, nil, c.signOut),
		public(http.MethodGet, linkPath, nil, func(w http.ResponseWriter, r *http.Request) error {
			c.write(w, r, http.StatusOK, "link.html", &view{c: c, r: r, Title: "Sign in", Data: Doc{"path": r.URL.EscapedPath()}})
			return nil
		}),
		public(http.MethodPost, linkPath, nil, c.useLink),
		public(http.MethodGet, portalPath, portalParams(), c.portal),
	}
}

// home leads to the first page that the visitor may open.
func (c *Console) home(w http.ResponseWriter, r *http.Request) error {
	v, err := c.visitorOf(r)
	if err != nil {
		return err
	}
	for _, p := range c.pages {
		if p.Menu != "" && c.opens(v, p.Path) != nil {
			http.Redirect(w, r, p.Path, http.StatusSeeOther)
			return nil
		}
	}
	return problem.New("forbidden", "The key opens no page of the console: its scopes allow no page")
}

// signInData says where the visitor goes after signing in, and whether the browser would drop the cookie.
func signInData(r *http.Request) Doc {
	next := r.URL.RequestURI()
	if r.Method != http.MethodGet || !IsPath(r.URL.Path) || r.URL.Path == signInPath {
		next = r.URL.Query().Get("next")
	}
	return Doc{"next": localPath(next), "insecure": r.TLS == nil && r.Header.Get("X-Forwarded-Proto") != "https" && !isLoopback(r.Host)}
}

// localPath returns an address of the console; "" for any other, and for one that the form to sign in cannot hold.
func localPath(address string) string {
	u, err := url.Parse(address)
	if err != nil || len(url.QueryEscape(address)) > maxNext || u.Host != "" || u.Scheme != "" || !IsPath(u.Path) ||
		path.Clean(u.Path) != u.Path || strings.Contains(address, "\\") ||
		strings.HasPrefix(u.Path, signInPath) || holdsKey(address) {
		return ""
	}
	return address
}

// holdsKey reports whether a text may hold the secret of a key: pages do not repeat it.
func holdsKey(text string) bool {
	return strings.Contains(text, "mp_op_") || strings.Contains(text, "mp_live_") || strings.Contains(text, "mp_test_")
}

func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// signIn opens a session for a key. Every key that may not sign in gets the same answer, until its address has sent too
// many of them. A right key signs in from any address.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) error {
	if err := c.readSignIn(w, r); err != nil {
		return err
	}
	if err := checkForm(r, nil); err != nil {
		return err
	}
	hash, ok := auth.HashOfSecret(strings.TrimSpace(r.PostForm.Get("key")))
	if !ok {
		return c.wrongKey(w, r)
	}
	caller, _, err := c.Keys.Identify(r.Context(), hash)
	if refused := (*domain.Error)(nil); errors.As(err, &refused) {
		return c.wrongKey(w, r)
	}
	if err != nil {
		return err
	}
	key := auth.SessionKey(caller, hash)
	if !c.opened.begin(key.String(), c.Now()) {
		return tooMany("The key has opened too many sessions. Wait a minute, then sign in again")
	}
	if err := c.open(w, r, key); err != nil {
		return err
	}
	next := localPath(r.PostForm.Get("next"))
	if next == "" {
		next = homePath
	}
	http.Redirect(w, r, next, http.StatusSeeOther)
	return nil
}

func tooMany(detail string) error {
	return problem.New("rate_limited", detail).Retry(int(attemptTime.Seconds()))
}

func (c *Console) wrongKey(w http.ResponseWriter, r *http.Request) error {
	if !c.refused.begin(edge.AddressOf(r.RemoteAddr), c.Now()) {
		return tooMany("Too many keys of this address were refused. Wait a minute, or sign in with a valid key")
	}
	refused := c.refusalOf(r, problem.New("unauthenticated",
		"The key cannot sign in: it is unknown, expired or revoked, or its tenant is suspended"))
	refused.signIn = true
	c.write(w, r, refused.Status, "signin.html", &view{c: c, r: r, Title: "Sign in", Problem: refused,
		Data: Doc{"next": localPath(r.PostForm.Get("next")), "insecure": signInData(r)["insecure"]}})
	return nil
}

// signOut deletes the session and the cookie.
func (c *Console) signOut(w http.ResponseWriter, r *http.Request) error {
	v, err := c.visitorOf(r)
	if err != nil {
		return err
	}
	if err := parseForm(w, r, maxSignIn); err != nil {
		return err
	}
	if err := checkForm(r, v); err != nil {
		return err
	}
	if err := c.Sessions.EndSession(r.Context(), sha256.Sum256(v.token[:])); err != nil {
		return err
	}
	setCookie(w, "", -1)
	http.Redirect(w, r, signInPath, http.StatusSeeOther)
	return nil
}

// OpenLink returns the path of a page that signs in once, as the holder of a key (auth.SessionKey), within commands.ConsoleLinkTime. The
// token is random; only its hash is stored.
func OpenLink(ctx context.Context, sessions commands.ConsoleSessions, token [32]byte, key uuid.UUID, now time.Time) (path string,
	err error) {
	if err := sessions.OpenLink(ctx, sha256.Sum256(token[:]), key, now.Add(commands.ConsoleLinkTime)); err != nil {
		return "", fmt.Errorf("open a link to sign in: %w", err)
	}
	return linksPath + encodeToken(token), nil
}

// useLink opens the session of a link. GET of the link only shows a button: a preview of the link does not use it.
func (c *Console) useLink(w http.ResponseWriter, r *http.Request) error {
	if err := checkForm(r, nil); err != nil {
		return err
	}
	address := edge.AddressOf(r.RemoteAddr)
	if c.refused.full(address, c.Now()) {
		return tooMany("Too many keys or links of this address were refused. Wait a minute, then open the link again")
	}
	token, ok := decodeToken(r.PathValue("link"))
	if !ok {
		return c.goneLink(address)
	}
	id, err := c.Sessions.UseLink(r.Context(), sha256.Sum256(token[:]), c.Now())
	if err != nil {
		return err
	}
	if id == uuid.Nil {
		return c.goneLink(address)
	}
	if err := c.open(w, r, id); err != nil {
		return err
	}
	http.Redirect(w, r, homePath, http.StatusSeeOther)
	return nil
}

func (c *Console) goneLink(address string) error {
	c.refused.begin(address, c.Now())
	return problem.New("not_found", "The link was used, or has expired. Sign in with a key")
}
