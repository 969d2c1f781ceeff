package codes

// sagas holds the codes of requests about sagas.
func sagas() []Code {
	return []Code{
		{"despite_invalid", 400, Request, false, 0, "despite names a condition that the background process cannot waive",
			"Send conditions that the process lists as missing and its kind can waive, or omit it"},
		{"saga_ended", 409, Request, false, 0, "The background process has ended",
			"Read its outcome with GET /sagas/{id}; an ended process does not run again"},
		{"saga_not_found", 404, Request, false, 0, "Background process not found", "Use an id of GET /sagas"},
	}
}
