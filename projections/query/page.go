package query

import "github.com/jackc/pgx/v5"

// Page is a page of a list. Next is the cursor of the next page, "" on the last.
type Page[T any] struct {
	Data []T
	Next string
}

// maxPage bounds a page of any list: a larger request is cut to it.
const maxPage = 1000

// PageBytes ends a page of large entries early, with the entry that reaches it: the memory of a page is bounded.
const PageBytes = 1 << 20

// PageSize returns the number of entries of a page that a request with a limit gets.
func PageSize(limit int) int { return max(1, min(limit, maxPage)) }

// Fill scans rows into the page until it has so many entries as the limit, or PageBytes. If a further row follows, next returns the cursor
// after the last entry.
func (p *Page[T]) Fill(limit int, scan func(pgx.Rows) (T, error), next func(last *T) string) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		for bytes := 0; rows.Next(); {
			if len(p.Data) == limit || bytes >= PageBytes {
				p.Next = next(&p.Data[len(p.Data)-1])
				rows.Close()
				break
			}
			one, err := scan(rows)
			if err != nil {
				return err
			}
			p.Data = append(p.Data, one)
			for _, value := range rows.RawValues() {
				bytes += len(value)
			}
		}
		return rows.Err()
	}
}
