package api

import (
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/http/problem"
)

// Between is a half-open time range in a query, [from, to).
type Between struct {
	From string `query:"from" format:"date-time" doc:"From this time on: the timestamp of usage, the first failure of a dead letter."`
	To   string `query:"to" format:"date-time" doc:"Before this time, by the same."`
}

func (b Between) Read() (from, to *time.Time, err error) {
	if from, err = TimeParameter("from", b.From); err == nil {
		to, err = TimeParameter("to", b.To)
	}
	if err == nil && from != nil && to != nil && to.Before(*from) {
		err = problem.New("parameter_invalid", "to lies before from")
	}
	return from, to, err
}

func TimeParameter(name, text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	t, fault := domain.ParseTime(text)
	if fault != nil {
		return nil, problem.New("parameter_invalid", name+": "+fault.Message)
	}
	return &t, nil
}

// IsPeriod reports whether s can be the key of a period.
func IsPeriod(key string) bool { return domain.CheckUsagePeriod(key) == nil }

// PeriodInvalid refuses a parameter that names no period.
func PeriodInvalid(parameter string) *problem.Problem {
	return problem.New("parameter_invalid", parameter+" must be a month (2026-05), a year (2026) or lifetime")
}

// TextOrNull returns nil for an empty text.
func TextOrNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// AppendMember appends a member after others of a JSON object. Invalid UTF-8 becomes U+FFFD, as in encoding/json.
func AppendMember(dst []byte, name, value string) []byte {
	if !utf8.ValidString(value) {
		value = string([]rune(value))
	}
	return strictjson.AppendString(append(strictjson.AppendString(append(dst, ','), name), ':'), value)
}

// LookupKey is the key of a feature.
type LookupKey string

// Schema implements huma.SchemaProvider.
func (LookupKey) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: domain.LookupKeyForm}
}

// ListOf returns the schema of a list of some of the given texts.
func ListOf(texts []string) *huma.Schema {
	items := &huma.Schema{Type: huma.TypeString}
	for _, text := range texts {
		items.Enum = append(items.Enum, text)
	}
	return &huma.Schema{Type: huma.TypeArray, Items: items}
}

// CatalogueKey is the key of a plan or a price.
type CatalogueKey string

// Schema implements huma.SchemaProvider.
func (CatalogueKey) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: domain.KeyForm}
}
