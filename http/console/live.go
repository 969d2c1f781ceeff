package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/meterplex/meterplex/http/auth"
)

// Live is the part of a page that the script reloads every two seconds, from the page's address with liveSuffix, into the element with the
// id "live".
type Live struct {
	Template string // one of templates/shared
	// Params and load are those of the page, if they differ.
	Params []string
	Load   func(v *Visit) (Doc, error)
	// Version, if set, is cheaper than load: while it is the same, the part is.
	Version func(v *Visit) (string, error)
}

const liveSuffix = "/live"

const (
	// readEvery is the time between two reads of a fragment.
	readEvery = 2 * time.Second
	// fragmentIdle is the time without requests after which a fragment is evicted.
	fragmentIdle = 10 * time.Second
	// maxFragments bounds the cache, and so its memory. Further fragments are read for each request.
	maxFragments = 256
)

// fragments caches the live parts: visitors with the same rights share a read.
type fragments struct {
	mu  sync.Mutex
	all map[string]*fragment
}

// fragment is a rendered live part.
type fragment struct {
	requested time.Time     // guarded by fragments.mu
	lock      chan struct{} // guards the other fields
	readAt    time.Time     // zero: never
	version   string
	tag       string
	html      []byte
}

// of returns the fragment with a key. An absent one is added, unless the cache is full.
func (c *fragments) of(key string, now time.Time) *fragment {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.all[key]
	if f == nil {
		f = &fragment{lock: make(chan struct{}, 1)}
		maps.DeleteFunc(c.all, func(_ string, old *fragment) bool { return now.Sub(old.requested) > fragmentIdle })
		if len(c.all) < maxFragments {
			c.all[key] = f
		}
	}
	f.requested = now
	return f
}

// live serves the live part of a page; 304 if the browser has it. A reload does not extend the session: an unattended page reloads, too.
func (c *Console) live(p *Page) func(w http.ResponseWriter, r *http.Request) error {
	rule := &auth.Route{Method: http.MethodGet, Path: p.Path + liveSuffix, Who: p.Who, Scopes: p.Scopes}
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := c.visit(w, r, rule)
		if err != nil {
			return err
		}
		if err = v.read(r.URL.RawQuery, p.Live.Params); err != nil {
			return err
		}
		key := fmt.Sprint(v.caller.TenantID, v.caller.Scopes, r.URL.EscapedPath(), "?", v.Query.Encode())
		html, tag, err := c.fragments.of(key, c.Now()).show(v, p.Live)
		if err != nil {
			return err
		}
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return nil
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(html) // a browser that is gone does not need it
		return nil
	}
}

// show returns a fragment and its entity tag. It is read unless the last read is recent. An error is that of this visitor alone.
func (f *fragment) show(v *Visit, l *Live) (html []byte, tag string, err error) {
	select {
	case f.lock <- struct{}{}:
	case <-v.r.Context().Done():
		return nil, "", v.r.Context().Err()
	}
	defer func() { <-f.lock }()
	if now := v.c.Now(); f.readAt.IsZero() || now.Sub(f.readAt) >= readEvery {
		if err := f.read(v, l); err != nil {
			return nil, "", err
		}
		f.readAt = now
	}
	return f.html, f.tag, nil
}

// read renders a fragment, unless its version is the same.
func (f *fragment) read(v *Visit, l *Live) (err error) {
	version := ""
	if l.Version != nil {
		if version, err = l.Version(v); err != nil || f.tag != "" && version == f.version {
			return err
		}
	}
	data, err := l.Load(v)
	if err != nil {
		return err
	}
	var html bytes.Buffer
	if err := v.c.templates.set.ExecuteTemplate(&html, l.Template, data); err != nil {
		return err
	}
	sum := sha256.Sum256(html.Bytes())
	f.html, f.tag, f.version = html.Bytes(), `"`+hex.EncodeToString(sum[:16])+`"`, version
	return nil
}
