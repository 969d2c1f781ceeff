package http

import (
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/problem"
)

// Between is a half-open time range in a query, [from, to).
type Between struct {
	From string `query:"from" format:"date-time" doc:"From this time on: the timestamp of usage, the first failure of a dead letter."`
	To   string `query:"to" format:"date-time" doc:"Before this time, by the same."`
}

func (b Between) read() (from, to *time.Time, err error) {
	if from, err = timeParameter("from", b.From); err == nil {
		to, err = timeParameter("to", b.To)
	}
	if err == nil && from != nil && to != nil && to.Before(*from) {
		err = problem.New("parameter_invalid", "to lies before from")
	}
	return from, to, err
}

func timeParameter(name, text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	t, fault := domain.ParseTime(text)
	if fault != nil {
		return nil, problem.New("parameter_invalid", name+": "+fault.Message)
	}
	return &t, nil
}

// isPeriod reports whether s can be the key of a period.
func isPeriod(key string) bool { return domain.CheckUsagePeriod(key) == nil }

// periodInvalid refuses a parameter that names no period.
func periodInvalid(parameter string) *problem.Problem {
	return problem.New("parameter_invalid", parameter+" must be a month (2026-05), a year (2026) or lifetime")
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.UTC())
}

// textOrNull returns nil for an empty text.
func textOrNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// lookupKey is the key of a feature.
type lookupKey string

// Schema implements huma.SchemaProvider.
func (lookupKey) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: domain.LookupKeyForm}
}

// catalogueKey is the key of a plan or a price.
type catalogueKey string

// Schema implements huma.SchemaProvider.
func (catalogueKey) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: domain.KeyForm}
}
