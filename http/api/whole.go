package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain/csvtext"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/query"
)

const mediaCSV = "text/csv; charset=utf-8"

const (
	// wholeTime bounds a whole list, which may hold a snapshot open.
	wholeTime = 10 * time.Minute
	// wholeFlush is the number of rows per flush.
	wholeFlush = 500
	// wholePage is the number of entries that one read returns for a whole list.
	wholePage = 1000
)

// WantsCSV reports whether CSV is requested: by the parameter, else by Accept.
func WantsCSV(format string, accept []string) bool {
	if format != "" {
		return format == "csv"
	}
	return Accepts(accept, "text/csv")
}

// RequestsCSV reports whether a request asks for CSV, by the parameter format, else by Accept. It refuses a page of it.
func RequestsCSV(ctx context.Context, format string) (bool, error) {
	from := edge.ExchangeOf(ctx).From
	if !WantsCSV(format, from.Header["Accept"]) {
		return false, nil
	}
	if q := from.URL.Query(); q.Has("limit") || q.Has("cursor") {
		return true, problem.New("parameter_invalid", "As CSV the whole list is one answer: leave out limit and cursor")
	}
	return true, nil
}

// WholeAnswer is a list of any length as one answer, which is written row by row, without the time limit of a page.
type WholeAnswer struct {
	http.ResponseWriter
	Ctx     context.Context
	control *http.ResponseController
	key     *confirmed
	csv     csvtext.Writer
	Columns []string // of CSV
	begun   bool
	rows    int
}

// WriteWhole runs write, which writes a whole list. An error after its begin, also that its key is refused by then, aborts the connection,
// so that a partial answer never looks complete.
func (s *Service) WriteWhole(w http.ResponseWriter, x *edge.Exchange, write func(*WholeAnswer) error) error {
	ctx, cancel := context.WithTimeout(edge.WithExchange(x.From.Context(), x), wholeTime)
	defer cancel()
	a := &WholeAnswer{ResponseWriter: w, Ctx: ctx, control: http.NewResponseController(w), key: confirmedOf(s.Edge, x),
		csv: csvtext.NewWriter(w)}
	err := write(a)
	if err == nil && a.Columns != nil {
		err = a.end()
	}
	if err != nil && a.begun {
		s.Log.WarnContext(ctx, "a whole list was cut off", "path", x.From.URL.Path, "error", err)
		panic(http.ErrAbortHandler)
	}
	return err
}

// BeginAs sets the type of the answer. After it, an error cannot become a problem.
func (a *WholeAnswer) BeginAs(media string) {
	a.begun = true
	a.Header().Set("Content-Type", media)
	a.extend()
}

// extend gives the client time to read. Over HTTP/2 a deadline that expires resets the stream, also if no data is written; without write
// deadlines, the context ends the answer.
func (a *WholeAnswer) extend() { _ = a.control.SetWriteDeadline(time.Now().Add(streamWrite)) }

// Row runs before each row: the client may read no more, and the key may be refused meanwhile.
func (a *WholeAnswer) Row() error {
	if a.rows++; a.rows%wholeFlush == 0 {
		a.extend()
		a.csv.Flush()
	}
	if err := a.key.check(a.Ctx); err != nil {
		return err
	}
	return a.csv.Error()
}

// Record writes a row as CSV, behind the columns. The first one begins the answer.
func (a *WholeAnswer) Record(cells []string) error {
	if err := a.Row(); err != nil {
		return err
	}
	if err := a.head(); err != nil {
		return err
	}
	return a.csv.Write(cells)
}

func (a *WholeAnswer) head() error {
	if a.begun {
		return nil
	}
	a.BeginAs(mediaCSV)
	return a.csv.Write(a.Columns)
}

// end ends a list as CSV, also one without rows.
func (a *WholeAnswer) end() error {
	if err := a.head(); err != nil {
		return err
	}
	a.csv.Flush()
	return a.csv.Error()
}

// CSVList is a list that is answered as one CSV text. read returns its page after a cursor, and the cursor of the
// next one, "" on the last; cells returns an entry in the order of the columns.
type CSVList[T any] struct {
	Columns []string
	Read    func(ctx context.Context, limit int, after string) (page []T, next string, err error)
	Cells   func(*T) []string
}

// AnswerCSV reads the first page, and returns a function that writes it and reads the others.
func AnswerCSV[T any](ctx context.Context, s *Service, l CSVList[T]) (func(huma.Context), error) {
	page, next, err := l.Read(ctx, wholePage, "")
	if err != nil {
		return nil, err
	}
	x := edge.ExchangeOf(ctx)
	if p := x.Stream(edge.PageCost); p != nil {
		return nil, p
	}
	return func(c huma.Context) {
		c.SetHeader("Content-Type", mediaCSV)
		c.SetHeader("Vary", "Accept")
		if c.Method() == http.MethodHead {
			return
		}
		_ = s.WriteWhole(c.BodyWriter().(http.ResponseWriter), x, func(a *WholeAnswer) error {
			// it has begun: an error aborts the connection
			a.Columns = l.Columns
			return l.write(a, page, next)
		})
	}, nil
}

func (l *CSVList[T]) write(a *WholeAnswer, page []T, after string) error {
	if err := a.head(); err != nil {
		return err
	}
	for {
		for i := range page {
			if err := a.Record(l.Cells(&page[i])); err != nil {
				return err
			}
		}
		if after == "" {
			return nil
		}
		var err error
		if page, after, err = l.Next(a, after); err != nil {
			return err
		}
	}
}

// Next reads the page after a cursor. It waits while other reads take the connections.
func (l *CSVList[T]) Next(a *WholeAnswer, after string) ([]T, string, error) {
	for {
		page, next, err := l.Read(a.Ctx, wholePage, after)
		if !errors.Is(err, query.ErrOverloaded) || a.Ctx.Err() != nil {
			return page, next, err
		}
		if refused := a.key.check(a.Ctx); refused != nil {
			return nil, "", refused
		}
		a.extend()
		time.Sleep(pollEvery)
	}
}

// AnswerJSON returns a function that writes a page of a list that may also be asked for as CSV.
func AnswerJSON(page any) (func(huma.Context), error) {
	body, err := json.Marshal(page)
	return func(c huma.Context) {
		c.SetHeader("Content-Type", MediaJSON)
		c.SetHeader("Content-Length", strconv.Itoa(len(body)))
		c.SetHeader("Vary", "Accept")
		_, _ = c.BodyWriter().Write(body)
	}, err
}

// Accepts reports whether Accept names a media type.
func Accepts(accept []string, media string) bool {
	for _, value := range accept {
		for one := range strings.SplitSeq(value, ",") {
			one, _, _ = strings.Cut(one, ";")
			if strings.EqualFold(strings.TrimSpace(one), media) {
				return true
			}
		}
	}
	return false
}
