package codec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// The bytes of envelopes are frozen.
func TestP2_EnvelopesHaveTheirFirstBytes(t *testing.T) {
	usage := sample()
	changed := sample()
	changed.Subject, changed.TenantID, changed.Position.Partition = events.TenantChanged, events.Platform, 0
	changed.Replay, changed.DedupeKey, changed.CausationID = "", "e/1", changed.EventID
	for name, e := range map[string]*events.Envelope{"usage": &usage, "tenant changed": &changed} {
		golden, err := os.ReadFile(filepath.Join("testdata", strings.ReplaceAll(name, " ", "_")+".golden.json"))
		must.OK(t, err)
		r, err := ToRecord(e)
		if err != nil || string(r.Value)+"\n" != string(golden) {
			t.Errorf("%s: %v\nrendered %s\n     was %s", name, err, r.Value, golden)
		}
	}
	if r, _ := ToRecord(&changed); string(r.Header(events.HeaderSubject)) != "meterplex.catalogue.tenant.changed.v1" ||
		r.Topic != events.TopicCatalogue {
		t.Errorf("subject %s of topic %s", r.Header(events.HeaderSubject), r.Topic.Name())
	}
}

func TestRecordsHaveATraceParent(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-8000000000000001-00"
	for name, c := range map[string]struct {
		change func(*events.Envelope)
		want   string
	}{
		"published":       {func(*events.Envelope) {}, parent},
		"withheld":        {func(e *events.Envelope) { e.Withheld = true }, parent},
		"without a trace": {func(e *events.Envelope) { e.CorrelationID = uuid.Nil }, ""},
	} {
		e := sample()
		c.change(&e)
		r, err := ToRecord(&e)
		if err != nil || string(r.Header(events.HeaderTrace)) != c.want {
			t.Errorf("%s: traceparent %q, want %q, %v", name, r.Header(events.HeaderTrace), c.want, err)
		}
	}
}

// An envelope is rendered with its own vocabulary, as read from the document, even if
// the registry of a later release differs.
func TestP2_AnEnvelopeKeepsItsVocabulary(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	before := slices.Clone(events.Subjects())
	defer copy(events.Subjects(), before)
	old := events.CurrentVocabulary()
	for n := range 200 {
		copy(events.Subjects(), before)
		e := sample()
		info := before[rng.IntN(len(before))]
		e.Subject, e.Residency = info.Subject, []string{"unspecified", "eu-central-1", "x"}[rng.IntN(3)]
		first, err := ToRecord(&e)
		must.OK(t, err)
		for i := range events.Subjects() {
			switch rng.IntN(4) {
			case 0:
				events.Subjects()[i].Retention = "hot"
			case 1:
				events.Subjects()[i].Type, events.Subjects()[i].Version = events.Subjects()[i].Type+"_now", 2
			case 2:
				events.Subjects()[i].Topic = events.TopicBilling
			}
		}
		e.Vocabulary, err = events.ParseVocabulary(old.Hash(), old.Document()) // as a later release reads it
		must.OK(t, err)
		again, err := ToRecord(&e)
		if err != nil || !reflect.DeepEqual(first, again) {
			t.Fatalf("seed %d, %d: %v\nfirst %s\nagain %s", seed, n, err, first.Value, again.Value)
		}
		entries := entriesOf(t, old)
		i := int(info.Subject)
		var said struct {
			EventType, SchemaURI string
			EventVersion         int
			Metadata             events.Metadata
		}
		must.OK(t, json.Unmarshal(again.Value, &said))
		if said.EventType != entries[i].Type || said.EventVersion != entries[i].Version || said.SchemaURI != entries[i].SchemaURI ||
			said.Metadata.RetentionClass != entries[i].Retention || said.Metadata.DataResidency != e.Residency ||
			again.Topic.Name() != entries[i].Topic {
			t.Fatalf("seed %d: %s is not what its vocabulary says: %+v", seed, again.Value, entries[i])
		}
	}
}

// entriesOf reads a document independently of the code that renders envelopes.
func entriesOf(t *testing.T, v *events.Vocabulary) map[int]events.Entry {
	t.Helper()
	var content struct{ Subjects []events.Entry }
	must.OK(t, json.Unmarshal([]byte(v.Document()), &content))
	by := map[int]events.Entry{}
	for _, e := range content.Subjects {
		by[int(e.Subject)] = e
	}
	return by
}

// There is no default for a missing vocabulary, subject or residency.
func TestAMissingSubjectOfAVocabularyIsAnError(t *testing.T) {
	for name, change := range map[string]func(*events.Envelope){
		"no vocabulary":     func(e *events.Envelope) { e.Vocabulary = nil },
		"no such subject":   func(e *events.Envelope) { e.Subject = 29 },
		"beyond the last":   func(e *events.Envelope) { e.Subject = 999 },
		"no subject":        func(e *events.Envelope) { e.Subject = 0 },
		"negative":          func(e *events.Envelope) { e.Subject = -1 },
		"no residency":      func(e *events.Envelope) { e.Residency = "" },
		"no such residency": func(e *events.Envelope) { e.Residency = `eu"` },
	} {
		e := sample()
		change(&e)
		if _, err := AppendWire(nil, &e); err == nil {
			t.Errorf("%s: an envelope was rendered", name)
		}
		if r, err := ToRecord(&e); err == nil {
			t.Errorf("%s: a record was made: %s", name, r.Value)
		}
	}
	e := sample()
	_, err := AppendWire(nil, &events.Envelope{Subject: e.Subject, Residency: "x"})
	if !errors.Is(err, events.ErrNoVocabulary) {
		t.Errorf("without a vocabulary: %v", err)
	}
}

func TestInvalidVocabulariesAreRefused(t *testing.T) {
	line := `{"subject":1,"type":"a.b","version":1,"topic":"usage.raw","retention":"cold","schemaUri":"/x#sha256=1"}`
	for name, document := range map[string]string{
		"not JSON":          `{`,
		"a member unknown":  `{"subjects":[],"envelope":2}`,
		"a subject twice":   `{"subjects":[` + line + `,` + line + `]}`,
		"no number":         `{"subjects":[` + strings.Replace(line, `"subject":1`, `"subject":0`, 1) + `]}`,
		"no version":        `{"subjects":[` + strings.Replace(line, `"version":1`, `"version":0`, 1) + `]}`,
		"a quote in a type": `{"subjects":[` + strings.Replace(line, `a.b`, `a\"b`, 1) + `]}`,
		"no retention":      `{"subjects":[` + strings.Replace(line, `cold`, ``, 1) + `]}`,
	} {
		sum := sha256.Sum256([]byte(document))
		if _, err := events.ParseVocabulary(hex.EncodeToString(sum[:]), document); err == nil {
			t.Errorf("%s: %s was taken", name, document)
		}
	}
	if _, err := events.ParseVocabulary(strings.Repeat("0", 64), events.CurrentVocabulary().Document()); err == nil {
		t.Error("a document was taken for another one's hash")
	}
	// An event of a topic that only a later release has can be shown, but not published.
	document := `{"subjects":[` + strings.Replace(line, "usage.raw", "usage.next", 1) + `]}`
	sum := sha256.Sum256([]byte(document))
	v, err := events.ParseVocabulary(hex.EncodeToString(sum[:]), document)
	must.OK(t, err)
	e := sample()
	e.Vocabulary = v
	if _, err := AppendWire(nil, &e); err != nil {
		t.Error(err)
	}
	if r, err := ToRecord(&e); err == nil {
		t.Errorf("a record of topic %d was made", r.Topic)
	}
}

func TestResidencies(t *testing.T) {
	for text, ok := range map[string]bool{
		"unspecified": true, "eu": true, "eu-central-1": true, "a": true, "a-": true, strings.Repeat("a", 32): true,
		"": false, strings.Repeat("a", 33): false, "EU": false, "1a": false, "-a": false, "a_b": false, "a b": false, "ä": false,
		"a\"": false, "eu\n": false,
	} {
		if events.IsResidency(text) != ok {
			t.Errorf("%q: %v, want %v", text, !ok, ok)
		}
	}
}
