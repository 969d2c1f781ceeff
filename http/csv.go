package http

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain/csvtext"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/query"
)

// csvPage is the number of entries that one read returns for CSV.
const csvPage = 1000

// csvList is a list that is answered as one CSV text. read returns its page after a place, and the place of the
// next one, "" on the last; cells returns an entry in the order of the columns.
type csvList[T any] struct {
	columns []string
	read    func(ctx context.Context, limit int, after string) (page []T, next string, err error)
	cells   func(*T) []string
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

// answerCSV reads the first page, and returns a function that writes it and reads the others. An error after the
// first page, also that its key is refused by then, aborts the connection, so that a partial answer never looks complete.
func answerCSV[T any](ctx context.Context, s *service, l csvList[T]) (func(huma.Context), error) {
	first, next, err := l.read(ctx, csvPage, "")
	if err != nil {
		return nil, err
	}
	x := edge.ExchangeOf(ctx)
	if p := x.Stream(edge.PageCost); p != nil {
		return nil, p
	}
	ctx, key := edge.WithExchange(x.From.Context(), x), confirmedOf(s.edge, x) // without the time limit of a page
	return func(c huma.Context) {
		c.SetHeader("Content-Type", mediaCSV)
		c.SetHeader("Vary", "Accept")
		if c.Method() == http.MethodHead {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, csvTime)
		defer cancel()
		if err := l.write(ctx, c.BodyWriter().(http.ResponseWriter), key, first, next); err != nil {
			s.log.WarnContext(ctx, "a list as CSV was cut off", "path", c.URL().Path, "error", err)
			panic(http.ErrAbortHandler)
		}
	}, nil
}

func (l *csvList[T]) write(ctx context.Context, w http.ResponseWriter, key *confirmed, page []T, after string) error {
	control, out := http.NewResponseController(w), csvtext.NewWriter(w)
	if err := out.Write(l.columns); err != nil {
		return err
	}
	for {
		for i := range page {
			if err := out.Write(l.cells(&page[i])); err != nil {
				return err
			}
		}
		_ = control.SetWriteDeadline(time.Now().Add(streamWrite)) // without write deadlines, the context ends it
		if out.Flush(); out.Error() != nil || after == "" {
			return out.Error()
		}
		var err error
		if page, after, err = l.next(ctx, control, key, after); err != nil {
			return err
		}
	}
}

// next reads the page after a place, and confirms the key before the page is written. It waits while other reads take the connections.
func (l *csvList[T]) next(ctx context.Context, control *http.ResponseController, key *confirmed, after string) ([]T, string, error) {
	for {
		page, next, err := l.read(ctx, csvPage, after)
		if refused := key.check(ctx); refused != nil {
			return nil, "", refused
		}
		if !errors.Is(err, query.ErrOverloaded) || ctx.Err() != nil {
			return page, next, err
		}
		_ = control.SetWriteDeadline(time.Now().Add(streamWrite)) // over HTTP/2 a deadline that expires cuts the answer off
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
