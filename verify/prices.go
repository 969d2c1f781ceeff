package verify

import "encoding/json"

// priceTerms are the members of a price that its charges depend on.
type priceTerms struct {
	Key, Currency, Model string
	MicroUnits           json.Number
	Version              int64
	PackageSize          int64
	Tiers                []priceTier
}

type priceTier struct {
	UpTo                       *int64
	MicroUnits, FlatMicroUnits json.Number
}

// priceVersion names a version of a price.
type priceVersion struct {
	key     string
	version int64
}
