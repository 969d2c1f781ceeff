package operate

import (
	"net/http"
	"net/http/pprof"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

// profileOperations serves the profiles of the process in the format of go tool pprof. The command
// line is not served: its flags may hold keys.
func (s *handlers) profileOperations(t *api.Site) {
	const path = "/debug/pprof/"
	for name, handler := range map[string]http.HandlerFunc{"": pprof.Index, "{profile}": pprof.Index, "profile": pprof.Profile,
		"trace": pprof.Trace} {
		t.ServePlain(api.Operation{Method: http.MethodGet, Path: path + name, Who: auth.Public}, handler, profileParams()...)
	}
}

// profileParams are the parameters of net/http/pprof.
func profileParams() []*huma.Param {
	param := func(name string) *huma.Param {
		return &huma.Param{Name: name, In: "query", Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: new(0.0)}}
	}
	return []*huma.Param{param("seconds"), param("debug"), param("gc")}
}
