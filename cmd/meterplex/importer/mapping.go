package importer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Mapping maps the columns of a row to the fields of usage events. Its members in JSON are those that determine ids.
type Mapping struct {
	Columns []ColumnMapping `json:"columns"` // one event for each, in this order
	// FeatureColumn names the feature of each row, and AmountColumn has its amount: instead of Columns. Rename has the features of its
	// values that are no keys of features.
	FeatureColumn string            `json:"featureColumn,omitempty"`
	AmountColumn  string            `json:"amountColumn,omitempty"`
	Rename        map[string]string `json:"rename,omitempty"`
	TenantColumn  string            `json:"tenantColumn,omitempty"` // the tenant of each row; "": that of the key
	IDColumn      string            `json:"idColumn,omitempty"`     // the id of each row; "": see occurrences
	TimeColumn    string            `json:"timeColumn"`
	TimeFormat    string            `json:"timeFormat,omitempty"` // see newClock; "" means usualLayouts
	Zone          *time.Location    `json:"-"`
	Scale         int64             `json:"scale,omitempty"`     // amounts are multiplied by it; 0 means 1
	Metadata      []string          `json:"metadata"`            // columns sent as metadata of each event
	Delimiter     rune              `json:"delimiter,omitempty"` // between the fields of a row; 0 means a comma
	// Where has the values that each of its columns may have. Other rows are left out.
	Where map[string][]string `json:"-"`
	// TypeColumn has the type of a row: usage (or an empty field), correction or retraction; "": all rows are usage. RefColumn is the
	// eventId of the usage that a correction or a retraction names.
	TypeColumn string `json:"typeColumn,omitempty"`
	RefColumn  string `json:"refColumn,omitempty"`
}

// Types of rows.
const (
	typeCorrection = "correction"
	typeRetraction = "retraction"
)

// Check refuses a mapping that does not say what each row is.
func (m *Mapping) Check() error {
	switch {
	case (m.FeatureColumn == "") != (m.AmountColumn == ""):
		return errors.New("--feature-column and --amount-column go together: they name the feature and the amount of each row")
	case (m.FeatureColumn == "") == (len(m.Columns) == 0):
		return errors.New("give --map FEATURE=COLUMN, or --feature-column with --amount-column")
	case len(m.Rename) > 0 && m.FeatureColumn == "":
		return errors.New("--rename renames values of --feature-column")
	case (m.TypeColumn == "") != (m.RefColumn == ""):
		return errors.New("--type-column and --ref-column go together: a correction names the eventId of its usage")
	case m.TypeColumn != "" && len(m.Columns) > 1:
		return errors.New("--type-column needs one --map: a correction has the feature of its usage")
	case m.Scale < 0 || m.Scale > maxAmount:
		return fmt.Errorf("--scale is a whole number from 1 to %d", int64(maxAmount))
	}
	_, err := m.newClock()
	return err
}

// ColumnMapping maps one column to the amount of one feature.
type ColumnMapping struct {
	Feature string `json:"feature"`
	Column  string `json:"column"`
}

// ParseColumns parses feature=column. A feature may be mapped only once: --id-column would give two amounts of one row one id.
func ParseColumns(texts []string) ([]ColumnMapping, error) {
	var columns []ColumnMapping
	for _, t := range texts {
		feature, column, ok := strings.Cut(t, "=")
		if !ok || feature == "" || column == "" || strings.Contains(feature, "|") {
			return nil, fmt.Errorf("--map %q: write feature=column", t)
		}
		if hasFeature(columns, feature) {
			return nil, fmt.Errorf("--map names the feature %q twice", feature)
		}
		columns = append(columns, ColumnMapping{feature, column})
	}
	slices.SortFunc(columns, func(a, b ColumnMapping) int { return cmp.Compare(a.Feature, b.Feature) })
	return columns, nil
}

// ParseWhere parses column=value. Of a column that is named twice, both values are selected.
func ParseWhere(texts []string) (map[string][]string, error) {
	where := map[string][]string{}
	for _, t := range texts {
		column, value, ok := strings.Cut(t, "=")
		if !ok || column == "" {
			return nil, fmt.Errorf("--where %q: write column=value", t)
		}
		where[column] = append(where[column], value)
	}
	return where, nil
}

// conditions returns Where as flags.
func (m *Mapping) conditions() string {
	var flags []string
	for _, column := range slices.Sorted(maps.Keys(m.Where)) {
		for _, value := range m.Where[column] {
			flags = append(flags, fmt.Sprintf("--where %q", column+"="+value))
		}
	}
	return strings.Join(flags, " ")
}

// featureKey matches the keys of features.
var featureKey = regexp.MustCompile(`^[a-z][a-z0-9_.-]{0,63}$`)

// ParseRename parses value=feature.
func ParseRename(texts []string) (map[string]string, error) {
	renamed := map[string]string{}
	for _, t := range texts {
		at := strings.LastIndexByte(t, '=')
		if at < 1 || !featureKey.MatchString(t[at+1:]) {
			return nil, fmt.Errorf("--rename %q: write value=feature", t)
		}
		if _, twice := renamed[t[:at]]; twice {
			return nil, fmt.Errorf("--rename names the value %q twice", t[:at])
		}
		renamed[t[:at]] = t[at+1:]
	}
	return renamed, nil
}

// ParseDelimiter parses the flag of a delimiter: one character, or tab.
func ParseDelimiter(text string) (rune, error) {
	if text == "tab" || text == `\t` {
		text = "\t"
	}
	r, size := utf8.DecodeRuneInString(text)
	if size == 0 || size != len(text) || r == utf8.RuneError || strings.ContainsRune("\"\r\n", r) {
		return 0, fmt.Errorf("--delimiter %q: give one character, e.g. ';', or tab", text)
	}
	return r, nil
}
