package cli

import (
	"net/http"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// FeaturesCmd groups the features commands.
type FeaturesCmd struct {
	Put  FeaturesPut  `cmd:"" help:"Create or change a feature."`
	List FeaturesList `cmd:"" help:"List the features."`
	Show FeaturesShow `cmd:"" help:"Show one feature."`
}

// FeaturesPut creates or changes a feature.
type FeaturesPut struct {
	LookupKey string `arg:"" help:"Its lookup key, as usage events name it."`
	Name      string `required:"" placeholder:"TEXT" help:"Its name."`
	Type      string `required:"" enum:"BOOLEAN,QUOTA,METERED" placeholder:"TYPE" help:"BOOLEAN (granted or not), QUOTA (used up to a limit) or METERED (billed by use)."`
	Unit      string `placeholder:"TEXT" help:"The counted unit, e.g. tokens."`

	GroupBy []string `placeholder:"KEY" help:"A metadata key by which usage series are grouped; at most two."`

	BillingEvent string `placeholder:"NAME" help:"Event name of the meter that counts it at the billing provider; not given: its lookup key."`
	Because
}

// Run prints the feature.
func (c *FeaturesPut) Run(a *app) error {
	return a.change(http.MethodPut, client.Path("features", c.LookupKey), client.Feature{Name: c.Name, Type: c.Type, Unit: c.Unit, GroupBy: c.GroupBy, BillingEvent: c.BillingEvent})
}

// FeaturesList lists features.
type FeaturesList struct{ Limit }

// Run prints the rows.
func (c *FeaturesList) Run(a *app) error {
	return a.list("/features", nil, c.Limit.Limit, "lookupKey", "name", "type", "unit")
}

// FeaturesShow shows a feature.
type FeaturesShow struct {
	LookupKey string `arg:"" help:"Its lookup key."`
}

// Run prints the feature.
func (c *FeaturesShow) Run(a *app) error { return a.show(client.Path("features", c.LookupKey), nil) }
