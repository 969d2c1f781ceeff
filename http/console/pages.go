package console

import (
	"github.com/meterplex/meterplex/http/auth"
)

// pages lists all pages, in the order of the navigation. Navigation, routes and the search derive from it. A page whose operation of the API (needs)
// is not built is absent.
func pages() []*page {
	return []*page{
		overviewPage(),
		tenantsPage(),
		newTenantPage(),
		tenantPage(),
		tenantChangePage(),
		usagePage(),
		explainPage(),
		recordsPage(),
		conflictsPage(),
		refusalsPage(),
		receiptPage(),
		eventsPage(),
		eventPage(),
		lineagePage(),
		searchPage(),
		lettersPage(),
		bulkPage(),
		letterPage(),
		rebuildsPage(),
		newRebuildPage(),
		newVerifyPage(),
		rebuildPage(),
		diffPageOf(),
		diffEventsPage(),
		keysPage(),
		newKeyPage(),
		systemPage(),
		settingsPage(),
		withheldPage(),
		replaysPage(),
		newReplayPage(),
		newRewindPage(),
		replayPageOf(),
		entitlementsPage(),
		comparisonPage(),
		reservationsPage(),
		periodsPage(),
		periodPage(),
		adjustmentsPage(),
		decisionPage(),
		pushesPage(),
		pushPage(),
		webhooksPage(),
		newWebhookPage(),
		webhookPage(),
		rotatePage(),
		resendPage(),
		thresholdsPage(),
		newThresholdPage(),
		sagasPage(),
		sagaPage(),
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

const (
	operator = auth.Operator
	either   = auth.Either
)
