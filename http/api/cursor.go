package api

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

// List identifies the list of a cursor: a route, a tenant and the filters. A cursor of
// another list is refused, because its position has no meaning here.
type List []string

func (l List) sum(generation int, after string) []byte {
	h := sha256.New()
	for _, part := range append(List{"meterplex cursor", after, strconv.Itoa(generation)}, l...) {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return h.Sum(nil)[:sumLength]
}

// Next encodes the cursor of the page after an entry. An escaped < would take six bytes: the cursor of a long key would be longer
// than a parameter may be.
func (l List) Next(generation int, after string) *string {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	// A struct of numbers and valid strings always encodes.
	_ = encoder.Encode(cursor{cursorVersion, generation, after, l.sum(generation, after)})
	text := base64.RawURLEncoding.EncodeToString(bytes.TrimSuffix(body.Bytes(), []byte("\n")))
	return &text
}

func CursorInvalid() *problem.Problem {
	return problem.New("cursor_invalid", "cursor is not of this list with these filters; start again without it")
}

// Open decodes a cursor that next wrote for the same list; "" is the first page.
func (l List) Open(text string) (generation int, after string, _ error) {
	if text == "" {
		return 0, "", nil
	}
	body, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return 0, "", CursorInvalid()
	}
	var c cursor
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil || c.Version != cursorVersion || strings.IndexByte(c.After, 0) >= 0 {
		return 0, "", CursorInvalid()
	}
	if written := l.Next(c.Generation, c.After); *written != text || !bytes.Equal(c.Sum, l.sum(c.Generation, c.After)) {
		return 0, "", CursorInvalid()
	}
	return c.Generation, c.After, nil
}

// Paging holds the query parameters that all lists share.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Page size."`
	Cursor string `query:"cursor" doc:"nextCursor of the previous page; opaque."`
}

// Page is the answer of a list.
type Page[T any] struct {
	Data       []T     `json:"data" nullable:"false"`
	NextCursor *string `json:"nextCursor" doc:"null on the last page."`
}

// Listed is a page as the output of an operation.
type Listed[T any] struct{ Body Page[T] }

// Cut makes a page of a query for limit+1 entries, or of all entries: a next page follows only if a further
// entry was found. The entry that reaches query.PageBytes is the last one. key returns an entry's position.
func Cut[T any](l List, entries []T, limit int, key func(*T) string) Page[T] {
	p := Page[T]{Data: entries}
	if n := fitting(entries[:min(limit, len(entries))]); n < len(entries) {
		p.Data = entries[:n]
		p.NextCursor = l.Next(0, key(&entries[n-1]))
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

// BodiesOf returns the wire format of the results of a read.
func BodiesOf[T, B any](found []T, of func(*T) B) []B {
	bodies := make([]B, len(found))
	for i := range found {
		bodies[i] = of(&found[i])
	}
	return bodies
}

// Behind returns the entries after a key in a complete list, which is sorted by key. An
// empty key returns all entries.
func Behind[T any](entries []T, after string, key func(*T) string) []T {
	for len(entries) > 0 && key(&entries[0]) <= after {
		entries = entries[1:]
	}
	return entries
}

// ListedFrom converts a page of the projections. The cursor of the API wraps that of the projection.
func ListedFrom[T any](l List, found query.Page[T]) Page[T] {
	p := Page[T]{Data: found.Data}
	if found.Data == nil {
		p.Data = []T{}
	}
	if found.Next != "" {
		p.NextCursor = l.Next(0, found.Next)
	}
	return p
}

// ListRead reads one page of a list of the projections.
func ListRead[T any](l List, p Paging, read func(limit int, after string) (query.Page[T], error)) (*Listed[T], error) {
	_, after, err := l.Open(p.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := read(p.Limit, after)
	return &Listed[T]{ListedFrom(l, found)}, err
}

// ListCatalogue reads one page of any other list. key returns an entry's position.
func ListCatalogue[T any](l List, p Paging, read func(commands.Page) ([]T, error), key func(*T) string) (*Listed[T], error) {
	_, after, err := l.Open(p.Cursor)
	if err != nil {
		return nil, err
	}
	entries, err := read(commands.Page{Limit: p.Limit + 1, After: after})
	if err != nil {
		return nil, err
	}
	return &Listed[T]{Cut(l, entries, p.Limit, key)}, nil
}
