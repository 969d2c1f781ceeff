package api

import (
	"cmp"
	_ "embed" // for descriptionsFile
	"encoding/json"
	"fmt"

	"github.com/danielgtaylor/huma/v2"
)

// DescriptionsFile describes members and parameters by name, so that a name has one meaning in all
// schemas. "Schema.member" takes precedence over "member". A doc tag takes precedence over both.
//
//go:embed descriptions.json
var DescriptionsFile []byte

// DescribeMembers describes each member and parameter that has no description. A test requires that
// all have one then.
func DescribeMembers(api *huma.OpenAPI) error {
	texts := map[string]string{}
	if err := json.Unmarshal(DescriptionsFile, &texts); err != nil {
		return fmt.Errorf("read descriptions.json: %w", err)
	}
	for schema, s := range api.Components.Schemas.Map() {
		for name, member := range s.Properties {
			if member.Description == "" && member.Ref == "" {
				member.Description = cmp.Or(texts[schema+"."+name], texts[name])
			}
		}
	}
	for _, op := range OperationsOf(api) {
		for _, p := range op.Parameters {
			p.Description = cmp.Or(p.Description, texts["parameter "+p.Name])
		}
	}
	return nil
}
