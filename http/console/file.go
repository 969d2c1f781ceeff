package console

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// File is an answer of the API that a page offers as a file. It is passed on as it comes, without being held in memory.
type File struct {
	Path    string
	Name    string // of the file; its extension gives the media type
	Params  []string
	Request func(v *Visit) (path string, query url.Values)
}

// file serves a file. The API confirms its key while it is sent.
func (c *Console) file(p *Page, f *File) func(w http.ResponseWriter, r *http.Request) error {
	rule := &route{Method: http.MethodGet, Path: f.Path, Who: p.Who, Scopes: p.Scopes}
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := c.visit(w, r, rule)
		if err != nil {
			return err
		}
		if err := v.read(r.URL.RawQuery, f.Params); err != nil {
			return err
		}
		if err := c.used(r, v.visitor); err != nil {
			return err
		}
		path, query := f.Request(v)
		out := &passage{to: w, control: http.NewResponseController(w), header: http.Header{}, name: f.Name}
		answered, err := v.requestOf(Request{Method: r.Method, Path: path, Query: query})
		if err != nil {
			return err
		}
		c.API.ServeHTTP(out, answered)
		if out.refused.Len() > 0 {
			return refusalIn(out.status, out.refused.Bytes())
		}
		return nil
	}
}

// File is the address of a file of the page, with the page's parameters.
func (d *view) File(name string) (string, error) {
	for _, f := range d.Page.Files {
		if f.Name == name {
			return f.Path + "?" + d.v.Pick(f.Params...).Encode(), nil
		}
	}
	return "", fmt.Errorf("the page %s has no file %q", d.Page.Path, name)
}

// passage is the answer of the API that becomes a file. It holds only a refusal, which becomes a page.
type passage struct {
	to      http.ResponseWriter
	control *http.ResponseController
	header  http.Header
	name    string
	status  int
	refused bytes.Buffer
}

func (f *passage) Header() http.Header { return f.header }

func (f *passage) WriteHeader(status int) {
	if f.status != 0 {
		return
	}
	if f.status = status; status != http.StatusOK {
		return
	}
	media := f.header.Get("Content-Type")
	h := f.to.Header()
	h.Set("Content-Type", media)
	h.Set("Content-Disposition", `attachment; filename="`+f.name+`"`)
	f.to.WriteHeader(status)
}

func (f *passage) Write(b []byte) (int, error) {
	f.WriteHeader(http.StatusOK)
	if f.status != http.StatusOK {
		return f.refused.Write(b)
	}
	return f.to.Write(b)
}

// Flush implements http.Flusher for the API.
func (f *passage) Flush() { _ = f.control.Flush() }

// SetWriteDeadline implements what http.ResponseController needs.
func (f *passage) SetWriteDeadline(at time.Time) error { return f.control.SetWriteDeadline(at) }

// SetReadDeadline is never needed: the request has no body.
func (f *passage) SetReadDeadline(time.Time) error { return nil }
