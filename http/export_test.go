package http

// ForgeCursor writes a cursor of a list to any place.
func ForgeCursor(generation int, after string, of ...string) string {
	return *list(of).next(generation, after)
}
