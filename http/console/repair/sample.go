package repair

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/http/console"
)

// fault is the member of a dead letter's payload that its code or its reason names.
type fault struct {
	payload any
	name    string   // of the member; "": the failure is not about a member
	path    []string // to the member in the payload; nil: the payload has no such member
}

// segment is a piece of a text, marked if it is at fault.
type segment struct {
	Text   string
	Marked bool
}

// maxSample bounds the payload on a page, in bytes.
const maxSample = 64 << 10

// quotedName is a name in a reason.
var quotedName = regexp.MustCompile(`"([A-Za-z][A-Za-z0-9_.-]{0,63})"`)

// faultOf finds the member at fault. The code names it (feature_not_found is about feature); a code that is about several members leaves
// that to the reason, which begins with the member or quotes it.
func faultOf(letter console.Doc) fault {
	f := fault{payload: letter["payload"]}
	named, reason := console.Text(letter["code"]), console.Text(letter["reason"])
	for _, known := range [][2]string{
		{"feature_", "feature"}, {"not_entitled", "feature"}, {"amount_", "amount"}, {"quota_exceeded", "amount"},
		{"timestamp_", "timestamp"},
		{"event_id_", "eventId"}, {"correction_", "correctionRef"}, {"metadata_", "metadata"}, {"type_", "type"}, {"events_", "events"},
		{"batch_", "events"},
	} {
		if strings.HasPrefix(named, known[0]) {
			f.name = known[1]
		}
	}
	if f.name != "" {
		f.path = pathTo(f.payload, f.name)
		return f
	}
	if named != "cloudevent_invalid" {
		return f
	}
	names := []string{strings.SplitN(reason, " ", 2)[0]}
	for _, found := range quotedName.FindAllStringSubmatch(reason, -1) {
		names = append(names, found[1])
	}
	for _, name := range names {
		if path := pathTo(f.payload, name); path != nil {
			f.name, f.path = name, path
			return f
		}
	}
	return f
}

// pathTo returns the path to a member of an object, or of an object within: the shortest one. It is nil if there is none.
func pathTo(in any, name string) []string {
	object, ok := in.(map[string]any)
	if !ok {
		return nil
	}
	if _, has := object[name]; has {
		return []string{name}
	}
	for _, key := range sortedKeys(object) {
		if rest := pathTo(object[key], name); rest != nil {
			return append([]string{key}, rest...)
		}
	}
	return nil
}

func sortedKeys(object map[string]any) []string {
	keys := make([]string, 0, len(object))
	for key := range object {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// sample returns the payload as indented JSON, with the member at fault marked.
func (f *fault) sample() []segment {
	if f.payload == nil {
		return nil
	}
	var all []segment
	length := 0
	write := func(text string, marked bool) {
		if length > maxSample {
			return
		}
		if length += len(text); length > maxSample {
			text = strings.ToValidUTF8(text[:len(text)-(length-maxSample)], "") +
				"\n… the payload is longer: the commands below show it whole"
		}
		if n := len(all); n > 0 && all[n-1].Marked == marked {
			all[n-1].Text += text
			return
		}
		all = append(all, segment{text, marked})
	}
	writeMarked(write, f.payload, f.path, "")
	return all
}

// writeMarked writes a value whose member at a path is at fault.
func writeMarked(write func(text string, marked bool), value any, path []string, indent string) {
	object, ok := value.(map[string]any)
	if !ok || len(path) == 0 {
		write(indentedBy(value, indent), false)
		return
	}
	write("{\n", false)
	keys := sortedKeys(object)
	for i, key := range keys {
		comma := ",\n"
		if i == len(keys)-1 {
			comma = "\n"
		}
		name, _ := json.Marshal(key)
		write(indent+"  ", false)
		switch {
		case key != path[0]:
			write(string(name)+": "+indentedBy(object[key], indent+"  "), false)
		case len(path) == 1:
			write(string(name)+": "+indentedBy(object[key], indent+"  "), true)
		default:
			write(string(name)+": ", false)
			writeMarked(write, object[key], path[1:], indent+"  ")
		}
		write(comma, false)
	}
	write(indent+"}", false)
}

func indentedBy(value any, indent string) string {
	lines, err := console.Indented(value)
	if err != nil {
		return console.Text(value)
	}
	return strings.ReplaceAll(lines, "\n", "\n"+indent)
}
