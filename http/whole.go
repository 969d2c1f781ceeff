package http

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

// wantsCSV reports whether CSV is requested: by the parameter, else by Accept.
func wantsCSV(format string, accept []string) bool {
	if format != "" {
		return format == "csv"
	}
	return accepts(accept, "text/csv")
}

// requestsCSV reports whether a request asks for CSV, by the parameter format, else by Accept. It refuses a page of it.
func requestsCSV(ctx context.Context, format string) (bool, error) {
	from := edge.ExchangeOf(ctx).From
	if !wantsCSV(format, from.Header["Accept"]) {
		return false, nil
	}
	if q := from.URL.Query(); q.Has("limit") || q.Has("cursor") {
		return true, problem.New("parameter_invalid", "As CSV the whole list is one answer: leave out limit and cursor")
	}
	return true, nil
}

// wholeAnswer is a list of any length as one answer, which is written row by row, without the time limit of a page.
type wholeAnswer struct {
	http.ResponseWriter
	ctx     context.Context
	control *http.ResponseController
	key     *confirmed
	csv     csvtext.Writer
	columns []string // of CSV
	begun   bool
	rows    int
}

// writeWhole runs write, which writes a whole list. An error after its begin, also that its key is refused by then, aborts the connection, so that a
// partial answer never looks complete.
func (s *service) writeWhole(w http.ResponseWriter, x *edge.Exchange, write func(*wholeAnswer) error) error {
	ctx, cancel := context.WithTimeout(edge.WithExchange(x.From.Context(), x), wholeTime)
	defer cancel()
	a := &wholeAnswer{ResponseWriter: w, ctx: ctx, control: http.NewResponseController(w), key: confirmedOf(s.edge, x), csv: csvtext.NewWriter(w)}
	err := write(a)
	if err == nil && a.columns != nil {
		err = a.end()
	}
	if err != nil && a.begun {
		s.log.WarnContext(ctx, "a whole list was cut off", "path", x.From.URL.Path, "error", err)
		panic(http.ErrAbortHandler)
	}
	return err
}

// beginAs sets the type of the answer. After it, an error cannot become a problem.
func (a *wholeAnswer) beginAs(media string) {
	a.begun = true
	a.Header().Set("Content-Type", media)
	a.extend()
}

// extend gives the client time to read. Over HTTP/2 a deadline that expires resets the stream, also if nothing is written; without write
// deadlines, the context ends the answer.
func (a *wholeAnswer) extend() { _ = a.control.SetWriteDeadline(time.Now().Add(streamWrite)) }

// row runs before each row: the client may read no more, and the key may be refused meanwhile.
func (a *wholeAnswer) row() error {
	if a.rows++; a.rows%wholeFlush == 0 {
		a.extend()
		a.csv.Flush()
	}
	if err := a.key.check(a.ctx); err != nil {
		return err
	}
	return a.csv.Error()
}

// record writes a row as CSV, behind the columns. The first one begins the answer.
func (a *wholeAnswer) record(cells []string) error {
	if err := a.row(); err != nil {
		return err
	}
	if err := a.head(); err != nil {
		return err
	}
	return a.csv.Write(cells)
}

func (a *wholeAnswer) head() error {
	if a.begun {
		return nil
	}
	a.beginAs(mediaCSV)
	return a.csv.Write(a.columns)
}

// end ends a list as CSV, also one without rows.
func (a *wholeAnswer) end() error {
	if err := a.head(); err != nil {
		return err
	}
	a.csv.Flush()
	return a.csv.Error()
}

// csvList is a list that is answered as one CSV text. read returns its page after a place, and the place of the
// next one, "" on the last; cells returns an entry in the order of the columns.
type csvList[T any] struct {
	columns []string
	read    func(ctx context.Context, limit int, after string) (page []T, next string, err error)
	cells   func(*T) []string
}

// answerCSV reads the first page, and returns a function that writes it and reads the others.
func answerCSV[T any](ctx context.Context, s *service, l csvList[T]) (func(huma.Context), error) {
	page, next, err := l.read(ctx, wholePage, "")
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
		_ = s.writeWhole(c.BodyWriter().(http.ResponseWriter), x, func(a *wholeAnswer) error { // it has begun: an error aborts the connection
			a.columns = l.columns
			return l.write(a, page, next)
		})
	}, nil
}

func (l *csvList[T]) write(a *wholeAnswer, page []T, after string) error {
	if err := a.head(); err != nil {
		return err
	}
	for {
		for i := range page {
			if err := a.record(l.cells(&page[i])); err != nil {
				return err
			}
		}
		if after == "" {
			return nil
		}
		var err error
		if page, after, err = l.next(a, after); err != nil {
			return err
		}
	}
}

// next reads the page after a place. It waits while other reads take the connections.
func (l *csvList[T]) next(a *wholeAnswer, after string) ([]T, string, error) {
	for {
		page, next, err := l.read(a.ctx, wholePage, after)
		if !errors.Is(err, query.ErrOverloaded) || a.ctx.Err() != nil {
			return page, next, err
		}
		if refused := a.key.check(a.ctx); refused != nil {
			return nil, "", refused
		}
		a.extend()
		time.Sleep(tailEvery)
	}
}

// answerJSON returns a function that writes a page of a list that may also be asked for as CSV.
func answerJSON(page any) (func(huma.Context), error) {
	body, err := json.Marshal(page)
	return func(c huma.Context) {
		c.SetHeader("Content-Type", mediaJSON)
		c.SetHeader("Content-Length", strconv.Itoa(len(body)))
		c.SetHeader("Vary", "Accept")
		_, _ = c.BodyWriter().Write(body)
	}, err
}

// accepts reports whether Accept names a media type.
func accepts(accept []string, media string) bool {
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
