package body

import (
	"mime"
	"net/http"
	"strings"

	"github.com/meterplex/meterplex/http/problem"
)

// IsJSONMedia accepts the media type of the catalogue's bodies.
func IsJSONMedia(media string) bool { return media == "application/json" }

// checkMedia checks the Content-Type: an accepted media type, in UTF-8. Without the header the media type is "".
func checkMedia(r *http.Request, takes func(media string) bool) *problem.Problem {
	values := r.Header["Content-Type"]
	if len(values) == 1 && values[0] == "application/json" && takes(values[0]) {
		return nil
	}
	if len(values) == 0 && takes("") {
		return nil
	}
	if len(values) == 1 {
		media, parameters, err := mime.ParseMediaType(values[0])
		charset, named := parameters["charset"]
		if err == nil && takes(media) && (!named || strings.EqualFold(charset, "utf-8")) {
			return nil
		}
	}
	return problem.New("media_type_unsupported",
		"Send JSON in UTF-8 with Content-Type: application/json, or another type that this route documents")
}
