package console

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// Equivalents are the commands that show the same as the page: curl, then the command line. They name the key by its environment variable.
func (d *view) Equivalents() (lines []string) {
	if d.v == nil || d.Page == nil {
		return nil
	}
	for _, req := range d.v.asked {
		lines = append(lines, curlOf(req))
	}
	for _, command := range d.commands() {
		if line, ok := d.v.fill(command); ok {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 { // the page reads only what its parameters name
		for _, command := range d.commands() {
			words := strings.Fields(command[:strings.IndexAny(command+"{", "{[")])
			end := slices.IndexFunc(append(words, "-"), func(word string) bool { return strings.HasPrefix(word, "-") })
			lines = append(lines, strings.Join(words[:end], " ")+" --help")
		}
	}
	return lines
}

// commands are the commands of the page for the visitor's kind of key.
func (d *view) commands() []string {
	if d.v.Tenant != nil && d.Page.TenantCLI != nil {
		return d.Page.TenantCLI
	}
	return d.Page.CLI
}

// curlOf returns the curl command of a request. The service's address and the key are in the environment, as the command line reads them.
func curlOf(req Request) string {
	target := req.Path
	if len(req.Query) > 0 {
		target += "?" + req.Query.Encode()
	}
	method := ""
	if req.Method != http.MethodGet {
		method = "-X " + req.Method + " "
	}
	if req.Body != nil {
		body, _ := json.Marshal(req.Body)
		method += "-H Content-Type:application/json -d " + quoted(string(body)) + " "
	}
	return `curl -fsS ` + method + `-H "Authorization: Bearer $METERPLEX_KEY" "$METERPLEX_URL"` + quoted(target)
}

// fill replaces the parameters of a command, each quoted for the shell. It reports false if one of them is absent. A part in brackets is
// left out if its parameter is absent.
func (v *Visit) fill(command string) (string, bool) {
	var b strings.Builder
	for command != "" {
		before, rest, found := strings.Cut(command, "[")
		filled, ok := v.fillPart(before)
		if !ok {
			return "", false
		}
		b.WriteString(filled)
		if !found {
			break
		}
		optional, after, _ := strings.Cut(rest, "]")
		if filled, ok := v.fillPart(optional); ok {
			b.WriteString(filled)
		}
		command = after
	}
	return b.String(), true
}

func (v *Visit) fillPart(text string) (string, bool) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{")
		if !found {
			b.WriteString(before)
			return b.String(), true
		}
		name, after, _ := strings.Cut(rest, "}")
		value := v.Param(name)
		if value == "" {
			value = v.Query.Get(name)
		}
		if name == "tenantId" && value == "" {
			value = v.TenantID()
		}
		if value == "" {
			return "", false
		}
		b.WriteString(placed(before, value))
		text = after
	}
}

// placed appends a value to its part of a command. The command line would read a value that begins with a hyphen as a flag: as the value of
// a flag it stands behind =, and otherwise behind --, which ends the flags.
func placed(before, value string) string {
	if !strings.HasPrefix(value, "-") {
		return before + quoted(value)
	}
	if flag := strings.TrimSuffix(before, " "); strings.HasPrefix(flag[strings.LastIndex(flag, " ")+1:], "--") {
		return flag + "=" + quoted(value)
	}
	return before + "-- " + quoted(value)
}

// quoted returns text as one word of a POSIX shell.
func quoted(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.,:/@%+=", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
