package console

import (
	"crypto/sha256"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
)

// Addresses of sessions.
const (
	signInPath  = Prefix + "/sign-in"
	signOutPath = Prefix + "/sign-out"
	linkPath    = Prefix + "/link/{link}"
	homePath    = Prefix
)

// sessionRoutes need no session.
func (c *Console) sessionRoutes() []Route {
	public := func(method, path string, parameters []string, serve func(http.ResponseWriter, *http.Request) error) Route {
		return Route{auth.Route{Method: method, Path: path, Who: auth.Public}, parameters, c.handler(serve)}
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
			c.write(w, r, http.StatusOK, "link.html", &view{c: c, r: r, Title: "Sign in", Data: doc{"path": r.URL.EscapedPath()}})
			return nil
		}),
		public(http.MethodPost, linkPath, nil, c.useLink),
	}
}

// home leads to the first page that the visitor may open.
func (c *Console) home(w http.ResponseWriter, r *http.Request) error {
	v, err := c.visitorOf(r)
	if err != nil {
		return err
	}
	for _, entry := range (&view{c: c, Visitor: v}).Menu() {
		http.Redirect(w, r, entry.Path, http.StatusSeeOther)
		return nil
	}
	return absent()
}

// signInData says where the visitor goes after signing in, and whether the browser would drop the cookie.
func signInData(r *http.Request) doc {
	next := r.URL.RequestURI()
	if r.Method != http.MethodGet || !IsPath(r.URL.Path) || r.URL.Path == signInPath {
		next = r.URL.Query().Get("next")
	}
	return doc{"next": localPath(next), "insecure": r.TLS == nil && r.Header.Get("X-Forwarded-Proto") != "https" && !isLoopback(r.Host)}
}

// localPath returns an address of the console; "" for any other.
func localPath(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host != "" || u.Scheme != "" || !IsPath(u.Path) || strings.ContainsAny(address, "\\") || strings.HasPrefix(u.Path, signInPath) {
		return ""
	}
	return address
}

func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// signIn opens a session for a key. Every key that may not sign in gets the same answer.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) error {
	if err := parseForm(w, r); err != nil {
		return err
	}
	if err := checkForm(r, nil); err != nil {
		return err
	}
	if !c.attempts.allow(remoteOf(r), c.Now()) {
		return problem.New("rate_limited", "Too many keys were refused. Wait a minute, then sign in again").Retry(int(attemptTime.Seconds()))
	}
	hash, ok := auth.HashOfSecret(strings.TrimSpace(r.PostForm.Get("key")))
	if !ok {
		return c.wrongKey(w, r)
	}
	caller, _, err := c.Keys.Identify(r.Context(), hash)
	if refused := (*problem.Problem)(nil); errors.As(err, &refused) {
		return c.wrongKey(w, r)
	}
	if err != nil {
		return err
	}
	if err := c.open(w, r, caller.KeyID); err != nil {
		return err
	}
	next := localPath(r.PostForm.Get("next"))
	if next == "" {
		next = homePath
	}
	w.Header().Set("Location", next)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

func (c *Console) wrongKey(w http.ResponseWriter, r *http.Request) error {
	c.attempts.count(remoteOf(r))
	refused := c.refusalOf(r, problem.New("unauthenticated", "The key cannot sign in: it is unknown, expired or revoked, or its tenant is suspended"))
	refused.signIn = true
	c.write(w, r, refused.Status, "signin.html", &view{c: c, r: r, Title: "Sign in", Problem: refused,
		Data: doc{"next": localPath(r.PostForm.Get("next")), "insecure": signInData(r)["insecure"]}})
	return nil
}

// signOut deletes the session and the cookie.
func (c *Console) signOut(w http.ResponseWriter, r *http.Request) error {
	v, err := c.visitorOf(r)
	if err != nil {
		return err
	}
	if err := parseForm(w, r); err != nil {
		return err
	}
	if err := checkForm(r, v); err != nil {
		return err
	}
	if err := c.Sessions.EndSession(r.Context(), sha256.Sum256(v.token[:])); err != nil {
		return err
	}
	setCookie(w, "", -1)
	w.Header().Set("Location", signInPath)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// linkTime is how long a link can sign in.
const linkTime = 15 * time.Minute

// Link returns the path of a page that signs in once, as the holder of a key, within linkTime.
func (c *Console) Link(r *http.Request, key uuid.UUID) (string, error) {
	token := c.NewToken()
	err := c.Sessions.OpenLink(r.Context(), sha256.Sum256(token[:]), key, c.Now().Add(linkTime))
	return Prefix + "/link/" + encodeToken(token), err
}

// useLink opens the session of a link. GET of the link only shows a button: a preview of the link does not use it.
func (c *Console) useLink(w http.ResponseWriter, r *http.Request) error {
	if err := checkForm(r, nil); err != nil {
		return err
	}
	gone := problem.New("not_found", "The link was used, or has expired. Sign in with a key")
	token, ok := decodeToken(r.PathValue("link"))
	if !ok {
		return gone
	}
	id, err := c.Sessions.UseLink(r.Context(), sha256.Sum256(token[:]), c.Now())
	if err != nil {
		return err
	}
	if id == uuid.Nil {
		return gone
	}
	if err := c.open(w, r, id); err != nil {
		return err
	}
	w.Header().Set("Location", homePath)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// Bounds of refused keys in attemptTime.
const (
	attemptTime      = time.Minute
	attemptsOfOne    = 10 // of one address
	attemptsOfAll    = 200
	attemptAddresses = 1000 // that are counted one by one
)

// attempts counts refused keys, so that nobody tries many. It is kept in memory: each instance counts its own.
type attempts struct {
	mu    sync.Mutex
	since time.Time
	all   int
	of    map[string]int // by address
}

// allow reports whether an address may try another key.
func (a *attempts) allow(address string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.since) >= attemptTime {
		a.since, a.all, a.of = now, 0, map[string]int{}
	}
	return a.all < attemptsOfAll && a.of[address] < attemptsOfOne
}

// count counts a refused key, after allow.
func (a *attempts) count(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all++
	if _, known := a.of[address]; known || len(a.of) < attemptAddresses {
		a.of[address]++
	}
}

func remoteOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
