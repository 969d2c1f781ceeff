package query

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
