package codec

import (
	"encoding/json"
	"testing"
)

func plainJSON(b []byte) bool {
	n, ok := plainValue(b, 0, 0)
	return ok && n == len(b)
}

// FuzzPlainJSON: accepted input is JSON, and compact output of Go is accepted.
func FuzzPlainJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.5e+7,"\u00e9\n",null,true,false,{}],"b":{"c":[]}}`, `01`, `-`, `1.`, `[1,]`, `{"a"}`, `"\x"`,
		`nul`, `[}`, `{]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if plainJSON(b) && !json.Valid(b) {
			t.Fatalf("%q is accepted", b)
		}
		var v any
		if json.Unmarshal(b, &v) != nil || len(b) > maxPlain {
			return
		}
		if written, err := json.Marshal(v); err == nil && !plainJSON(written) {
			t.Fatalf("%q is not accepted", written)
		}
	})
}
