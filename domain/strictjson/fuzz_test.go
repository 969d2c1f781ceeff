package strictjson

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

func FuzzCanonical(f *testing.F) {
	for _, doc := range []string{`{"b":[1.50,"\u00e9",{"c":null}],"a":{}}`, `1e3`, `"a\"\\b"`, `"\ud800"`, `{}`,
		`[0.1,-0,1E400,5e-324,123456789012345678]`, `{"\u20ac":1,"\r":2,"\ufb33":3,"\ud83d\ude00":4}`, nest(65)} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		canonical, fault := Canonical(doc)
		strictFault := Check(doc)
		if strict, decided := referenceStrict(doc); decided && strict != (strictFault == nil) {
			t.Fatalf("%q: %v, want strict: %v", doc, strictFault, strict)
		}
		if fault != nil {
			if strictFault == nil && fault.Code != "number_not_exact" {
				t.Fatalf("%q: %v, but it is strict JSON", doc, fault)
			}
			return
		}
		if strictFault != nil {
			t.Fatalf("%q is canonicalised, but: %v", doc, strictFault)
		}
		if again, fault := Canonical(canonical); fault != nil || !bytes.Equal(again, canonical) {
			t.Fatalf("%s becomes %s, %v", canonical, again, fault)
		}
		var before, after any
		if err := json.Unmarshal(doc, &before); err != nil {
			t.Fatalf("%q: %v", doc, err)
		}
		if err := json.Unmarshal(canonical, &after); err != nil || !reflect.DeepEqual(before, after) {
			t.Fatalf("%q became %q, %v", doc, canonical, err)
		}
	})
}
