package console

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/meterplex/meterplex/http/problem"
)

// displayed refuses an action whose target differs from the one that the page displayed: a change by PUT or PATCH has no Idempotency-Key. The
// form's state is the target's JSON.
func (v *visit) displayed(f form, path string) error {
	present, err := v.do(request{Method: http.MethodGet, Path: path})
	if err != nil {
		return err
	}
	state, err := indented(present)
	if err == nil && digest(state) != f.get("state") {
		err = problem.New("state_changed", "It has changed since the page was displayed, and nothing was done. The page shows its present state")
	}
	return err
}

// unused refuses to make an entry that exists.
func (v *visit) unused(path string) error {
	_, err := v.do(request{Method: http.MethodGet, Path: path})
	if refused := (*refusal)(nil); errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil
	}
	if err == nil {
		err = problem.New("state_changed", "An entry with this key exists by now, and nothing was done. Change it on its page")
	}
	return err
}

// changed reports whether a value differs from the one that the page displayed under a name: values that the visitor did not change are not sent. The
// form's field "was" holds the digests of the displayed values.
func (f form) changed(name, value string) bool {
	was := map[string]string{}
	_ = json.Unmarshal([]byte(f.get("was")), &was) // a form that was not made by the page has none
	return was[name] != digest(value)
}

// wasOf returns the digests of the values that a page displays.
func wasOf(values map[string]string) string {
	was := map[string]string{}
	for name, value := range values {
		was[name] = digest(value)
	}
	encoded, _ := json.Marshal(was) // texts never fail
	return string(encoded)
}
