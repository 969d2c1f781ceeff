package catalogue

import "github.com/meterplex/meterplex/http/console"

// cataloguePages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		cataloguePage(),
		newFeaturePage(),
		featurePage(),
		newPlanPage(),
		planPage(),
		newPricePage(),
		pricePage(),
		evaluationPage(),
	}
}
