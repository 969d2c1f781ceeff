package http

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/query"
)

// cursor is the position of the next page. It is opaque to clients: its content may
// change with cursorVersion. It grants no rights: a page shows a caller only what the
// list shows without a cursor.
type cursor struct {
	Version    int    `json:"v"`
	Generation int    `json:"g,omitempty"` // of the projection the page was read from
	After      string `json:"a"`           // the last entry of the page
	Sum        []byte `json:"s"`           // binds it to the list it came from
}

const (
	cursorVersion = 1
	sumLength     = 12
)

// list identifies the list of a cursor: a route, a tenant and the filters. A cursor of
// another list is refused, because its position has no meaning here.
type list []string

func (l list) sum(generation int, after string) []byte {
	h := sha256.New()
	for _, part := range append(list{"meterplex cursor", after, strconv.Itoa(generation)}, l...) {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return h.Sum(nil)[:sumLength]
}

// next encodes the cursor of the page after an entry. An escaped < would take six bytes: the cursor of a long key would be longer
// than a parameter may be.
func (l list) next(generation int, after string) *string {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	// A struct of numbers and valid strings always encodes.
	_ = encoder.Encode(cursor{cursorVersion, generation, after, l.sum(generation, after)})
	text := base64.RawURLEncoding.EncodeToString(bytes.TrimSuffix(body.Bytes(), []byte("\n")))
	return &text
}

func cursorInvalid() *problem.Problem {
	return problem.New("cursor_invalid", "cursor is not of this list with these filters; start again without it")
}

// open decodes a cursor that next wrote for the same list; "" is the first page.
func (l list) open(text string) (generation int, after string, _ error) {
	if text == "" {
		return 0, "", nil
	}
	body, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return 0, "", cursorInvalid()
	}
	var c cursor
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil || c.Version != cursorVersion || strings.IndexByte(c.After, 0) >= 0 {
		return 0, "", cursorInvalid()
	}
	if written := l.next(c.Generation, c.After); *written != text || !bytes.Equal(c.Sum, l.sum(c.Generation, c.After)) {
		return 0, "", cursorInvalid()
	}
	return c.Generation, c.After, nil
}

// Paging holds the query parameters that all lists share.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Page size."`
	Cursor string `query:"cursor" doc:"nextCursor of the previous page; opaque."`
}

// page is the answer of a list.
type page[T any] struct {
	Data       []T     `json:"data" nullable:"false"`
	NextCursor *string `json:"nextCursor" doc:"null on the last page."`
}

// listed is a page as the output of an operation.
type listed[T any] struct{ Body page[T] }

// cut makes a page of a query for limit+1 entries, or of all entries: a next page follows only if a further
// entry was found. The entry that reaches query.PageBytes is the last one. key returns an entry's position.
func cut[T any](l list, entries []T, limit int, key func(*T) string) page[T] {
	p := page[T]{Data: entries}
	if n := fitting(entries[:min(limit, len(entries))]); n < len(entries) {
		p.Data = entries[:n]
		p.NextCursor = l.next(0, key(&entries[n-1]))
	}
	if p.Data == nil {
		p.Data = []T{}
	}
	return p
}

// fitting returns the number of entries of a page of query.PageBytes.
func fitting[T any](entries []T) int {
	bytes := 0
	for i := range entries {
		if one, err := json.Marshal(&entries[i]); err == nil { // else the answer fails
			bytes += len(one)
		}
		if bytes >= query.PageBytes {
			return i + 1
		}
	}
	return len(entries)
}

// bodiesOf returns the wire format of what a read found.
func bodiesOf[T, B any](found []T, of func(*T) B) []B {
	bodies := make([]B, len(found))
	for i := range found {
		bodies[i] = of(&found[i])
	}
	return bodies
}

// behind returns the entries after a key in a complete list, which is sorted by key. An
// empty key returns all entries.
func behind[T any](entries []T, after string, key func(*T) string) []T {
	for len(entries) > 0 && key(&entries[0]) <= after {
		entries = entries[1:]
	}
	return entries
}

// listedFrom converts a page of the projections. The cursor of the API wraps that of the projection.
func listedFrom[T any](l list, found query.Page[T]) page[T] {
	p := page[T]{Data: found.Data}
	if found.Data == nil {
		p.Data = []T{}
	}
	if found.Next != "" {
		p.NextCursor = l.next(0, found.Next)
	}
	return p
}

// listCatalogue reads one page of a catalogue list. key returns an entry's position.
func listCatalogue[T any](l list, p Paging, read func(commands.Page) ([]T, error), key func(*T) string) (*listed[T], error) {
	_, after, err := l.open(p.Cursor)
	if err != nil {
		return nil, err
	}
	entries, err := read(commands.Page{Limit: p.Limit + 1, After: after})
	if err != nil {
		return nil, err
	}
	return &listed[T]{cut(l, entries, p.Limit, key)}, nil
}
