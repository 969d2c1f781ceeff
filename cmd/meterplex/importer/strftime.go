package importer

import (
	"fmt"
	"strings"
)

// conversions are the conversions of strftime as elements of layouts.
var conversions = map[string]string{
	"Y": "2006", "y": "06", "m": "01", "-m": "1", "d": "02", "-d": "2", "e": "_2", "j": "002", "b": "Jan", "h": "Jan", "B": "January",
	"a": "Mon", "A": "Monday",
	"H": "15", "I": "03", "-I": "3", "M": "04", "-M": "4", "S": "05", "-S": "5", "p": "PM", "P": "pm", "f": "999999999", "L": "999999999",
	"N": "999999999", "3N": "999999999", "6N": "999999999", "9N": "999999999",
	"F": "2006-01-02", "T": "15:04:05", "R": "15:04", "D": "01/02/06", ":z": "Z07:00",
}

// strftime returns the layouts of a format such as %Y-%m-%d %H:%M:%S%z. An offset may have its colon or its minutes or not.
func strftime(format string) ([]string, error) {
	var b strings.Builder
	for rest := format; rest != ""; {
		text, after, found := strings.Cut(rest, "%")
		if strings.ContainsAny(text, "0123456789_") || strings.ContainsFunc(text, isLetter) && text != "T" {
			return nil, fmt.Errorf("--time-format %q has the text %q: only T, spaces and signs may be between its conversions", format,
				text)
		}
		b.WriteString(text)
		if !found {
			break
		}
		name := conversionOf(after)
		rest = after[len(name):]
		element, ok := conversions[name]
		switch {
		case name == "z":
			element = "%z"
		case !ok:
			return nil, fmt.Errorf("--time-format %q: %%%s is not read; write %%Y, %%m, %%d, %%H, %%M, %%S, %%f and %%z", format, name)
		case element[0] == '9' && !strings.HasSuffix(b.String(), "05.") && !strings.HasSuffix(b.String(), "05,"):
			return nil, fmt.Errorf("--time-format %q: %%%s has to follow the seconds, as in %%S.%%f", format, name)
		}
		b.WriteString(element)
	}
	if !strings.Contains(b.String(), "%z") {
		return []string{b.String()}, nil
	}
	var layouts []string
	for _, offset := range []string{"Z07:00", "Z0700", "Z07"} {
		layouts = append(layouts, strings.Replace(b.String(), "%z", offset, 1))
	}
	return layouts, nil
}

// conversionOf returns the name of the conversion that a text begins with: a letter, with a sign or digit before it.
func conversionOf(text string) string {
	if len(text) > 1 && strings.ContainsRune("-:369E", rune(text[0])) {
		return text[:2]
	}
	return text[:min(1, len(text))]
}

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r > 127 }
