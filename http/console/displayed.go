package console

import "encoding/json"

// changed reports whether a value differs from the one that the page displayed under a name: values that the visitor did not change are not
// sent. The form's field "was" holds the digests of the displayed values.
func (f Form) changed(name, value string) bool {
	was := map[string]string{}
	_ = json.Unmarshal([]byte(f.Get("was")), &was) // a form that was not made by the page has no digests
	return was[name] != Digest(value)
}

// WasOf returns the digests of the values that a page displays.
func WasOf(values map[string]string) string {
	was := map[string]string{}
	for name, value := range values {
		was[name] = Digest(value)
	}
	encoded, _ := json.Marshal(was) // texts never fail
	return string(encoded)
}
