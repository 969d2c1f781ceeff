package http

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/http/shape"
	"github.com/meterplex/meterplex/internal/must"
)

// invalidBodies are seeds of catalogue bodies.
func invalidBodies() []string {
	return []string{`{"name":"Pro","type":"QUOTA","unit":"call"}`,
		`{"name":"Pro","entitlements":[{"feature":"a","limit":5,"limitBehavior":"HARD"},{"feature":"b","limit":null}]}`,
		`{"plan":"pro","status":"ACTIVE"}`, `{"name":"k","scopes":["usage:write"],"expiresAt":"2030-01-01T00:00:00Z"}`,
		`{"action":"retry","filter":{"ids":["x"]},"reason":"r"}`,
		`{"reason":"\u0000"}`, `{"reason":"\ud800"}`, `{"reason":null}`, `{"Reason":"x"}`, `{"reason":"a","reason":"b"}`, `{"name":1e400}`,
		`{"limit":9007199254740993}`,
		`{"limit":-0}`, `{"limit":1.0}`, `{"limit":01}`, `[]`, `null`, ``, `{}{}`, "\uFEFF{}", `{"a":` + strings.Repeat("[", 65),
		`{"name":"` + strings.Repeat("é", 200) + `"}`,
		`{"fromPosition":"17-1","toPosition":"17-9","reason":"x"}`, `{"scope":{"tenantId":"t"},"workers":4,"reason":"x"}`,
		`{"overlapSeconds":3600}`}
}

// FuzzBodies: an accepted body decodes into the operation's input without losing a
// member, and holds no text that the database refuses.
func FuzzBodies(f *testing.F) {
	ops, registry := served(f)
	var (
		rules   []*shape.Body
		schemas []string
	)
	for _, op := range ops {
		if b := shape.NewBody(op, registry); b != nil && op.OperationID != "ingestUsage" {
			for _, body := range invalidBodies() {
				f.Add(uint8(len(rules)), []byte(body))
			}
			rules = append(rules, b)
			schemas = append(schemas, op.RequestBody.Content["application/json"].Schema.Ref)
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, raw []byte) {
		b, schema := rules[int(n)%len(rules)], schemas[int(n)%len(rules)]
		if b.Check(raw) != nil {
			return
		}
		if fault := strictjson.Check(raw); fault != nil {
			t.Fatalf("%q is accepted, and: %v", raw, fault)
		}
		into := typeOf(registry, schema)
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into.Interface()); err != nil {
			t.Fatalf("%q is accepted by %s, and: %v", raw, schema, err)
		}
		checkTexts(t, into.Elem())
		again, err := json.Marshal(into.Interface())
		must.OK(t, err)
		second := typeOf(registry, schema)
		if err := json.Unmarshal(again, second.Interface()); err != nil || !reflect.DeepEqual(second.Interface(), into.Interface()) {
			t.Fatalf("%q becomes %s, %v", raw, again, err)
		}
	})
}

// typeOf returns a new value of the type that a body is decoded into.
func typeOf(registry huma.Registry, schema string) reflect.Value {
	t := registry.TypeFromRef(schema)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return reflect.New(t)
}

// checkTexts fails on text that PostgreSQL cannot store.
func checkTexts(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		if strings.ContainsRune(v.String(), 0) {
			t.Fatalf("%q cannot be stored", v.String())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			checkTexts(t, v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			checkTexts(t, v.Index(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			checkTexts(t, v.Elem())
		}
	}
}
