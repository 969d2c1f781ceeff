package http

import (
	"bytes"
	stdgzip "compress/gzip"
	"encoding/json"
	"io"
	"mime"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/meterplex/meterplex/domain/strictjson"
)

// awkwardBodies are seeds of catalogue bodies.
func awkwardBodies() []string {
	return []string{`{"name":"Pro","type":"QUOTA","unit":"call"}`, `{"name":"Pro","entitlements":[{"feature":"a","limit":5,"limitBehavior":"HARD"},{"feature":"b","limit":null}]}`,
		`{"plan":"pro","status":"ACTIVE"}`, `{"name":"k","scopes":["usage:write"],"expiresAt":"2030-01-01T00:00:00Z"}`, `{"action":"retry","filter":{"ids":["x"]},"reason":"r"}`,
		`{"reason":"\u0000"}`, `{"reason":"\ud800"}`, `{"reason":null}`, `{"Reason":"x"}`, `{"reason":"a","reason":"b"}`, `{"name":1e400}`, `{"limit":9007199254740993}`,
		`{"limit":-0}`, `{"limit":1.0}`, `{"limit":01}`, `[]`, `null`, ``, `{}{}`, "\uFEFF{}", `{"a":` + strings.Repeat("[", 65), `{"name":"` + strings.Repeat("é", 200) + `"}`,
		`{"fromPosition":"17-1","toPosition":"17-9","reason":"x"}`, `{"scope":{"tenantId":"t"},"workers":4,"reason":"x"}`, `{"overlapSeconds":3600}`}
}

// FuzzBodies: an accepted body decodes into the operation's input without losing a
// member, and holds no text that the database refuses.
func FuzzBodies(f *testing.F) {
	ops, registry, _ := served(f)
	var rules []*bodyRules
	for _, op := range ops {
		if b := newBodyRules(op, registry); b != nil && op.OperationID != "ingestUsage" {
			for _, body := range awkwardBodies() {
				f.Add(uint8(len(rules)), []byte(body))
			}
			rules = append(rules, b)
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, raw []byte) {
		b := rules[int(n)%len(rules)]
		if b.check(raw) != nil {
			return
		}
		if fault := strictjson.Check(raw); fault != nil {
			t.Fatalf("%q is taken, and: %v", raw, fault)
		}
		into := typeOf(b)
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into.Interface()); err != nil {
			t.Fatalf("%q is taken by %s, and: %v", raw, b.schema.Ref, err)
		}
		checkTexts(t, into.Elem())
		again, err := json.Marshal(into.Interface())
		if err != nil {
			t.Fatal(err)
		}
		second := typeOf(b)
		if err := json.Unmarshal(again, second.Interface()); err != nil || !reflect.DeepEqual(second.Interface(), into.Interface()) {
			t.Fatalf("%q becomes %s, %v", raw, again, err)
		}
	})
}

// typeOf returns a new value of the type that a body is decoded into.
func typeOf(b *bodyRules) reflect.Value {
	t := b.registry.TypeFromRef(b.schema.Ref)
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

// packed compresses with both codings.
func packed(plain []byte) (gzipped, zstandard []byte) {
	var b bytes.Buffer
	z := stdgzip.NewWriter(&b)
	_, _ = z.Write(plain)
	_ = z.Close()
	w, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	return b.Bytes(), w.EncodeAll(plain, nil)
}

// FuzzUnpack: a decompressed body equals the output of another implementation, never
// exceeds the limit, and its charge is released. An invalid body does not affect the next
// one.
func FuzzUnpack(f *testing.F) {
	const limit = 4 << 10
	for _, plain := range [][]byte{nil, []byte(`{"events":[]}`), bytes.Repeat([]byte("a"), limit), bytes.Repeat([]byte("a"), limit+1), make([]byte, 1<<20)} {
		g, z := packed(plain)
		f.Add("gzip", g)
		f.Add("zstd", z)
		f.Add("gzip", append(g[:len(g):len(g)], g...))
		f.Add("zstd", append(z[:len(z):len(z)], z...))
		f.Add("gzip", g[:len(g)/2])
		f.Add("zstd", z[:len(z)/2])
		f.Add("", plain[:min(len(plain), limit+1)])
	}
	f.Add("GZIP", []byte("\x1f\x8b"))
	f.Add("gzip, zstd", []byte("x"))
	f.Add("br", []byte("x"))
	var kept unpackers
	f.Fuzz(func(t *testing.T, coding string, sent []byte) {
		var held counter
		unpack := func(coding string, sent []byte) ([]byte, error) {
			c := &charge{all: &held, allBound: 64 << 20}
			defer c.close()
			r := httptest.NewRequest("POST", "/", bytes.NewReader(sent))
			r.Header.Set("Content-Encoding", coding)
			return kept.read(&limitedReader{from: r.Body, left: limit}, r, limit, c)
		}
		body, err := unpack(coding, sent)
		if len(body) > limit && err == nil {
			t.Fatalf("%d bytes", len(body))
		}
		if err == nil {
			if want, wrong := reference(coding, sent); wrong != nil || !bytes.Equal(want, body) {
				t.Fatalf("%q %q is %q; another reader says %q, %v", coding, sent, body, want, wrong)
			}
		}
		g, z := packed([]byte("next"))
		for coding, sent := range map[string][]byte{"gzip": g, "zstd": z, "": []byte("next")} {
			if body, err := unpack(coding, sent); err != nil || string(body) != "next" {
				t.Fatalf("the body after it: %q, %v", body, err)
			}
		}
		if held.n.Load() != 0 {
			t.Fatalf("%d bytes are held by nobody", held.n.Load())
		}
	})
}

// reference decompresses with another implementation.
func reference(coding string, sent []byte) ([]byte, error) {
	switch strings.ToLower(coding) {
	case "gzip":
		z, err := stdgzip.NewReader(bytes.NewReader(sent))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	case "zstd":
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return z.DecodeAll(sent, nil)
	}
	return sent, nil
}

// FuzzMedia: an accepted Content-Type is a media type in UTF-8.
func FuzzMedia(f *testing.F) {
	for _, value := range []string{"application/json", "Application/JSON; charset=UTF-8", "application/json;charset=latin1", "application/json; charset", "application/json, text/plain", "", "text/plain", "application/json; q=\"", "application/cloudevents+json;a=b", "\x00"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header["Content-Type"] = []string{value}
		media := ""
		if checkMedia(r, func(m string) bool { media = m; return isJSONMedia(m) }) != nil {
			return
		}
		got, parameters, err := mime.ParseMediaType(value)
		if err != nil || got != media || got != "application/json" || parameters["charset"] != "" && !strings.EqualFold(parameters["charset"], "utf-8") {
			t.Fatalf("%q is taken: %q %v %v", value, got, parameters, err)
		}
	})
}
