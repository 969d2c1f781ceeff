package entitlements

import "github.com/meterplex/meterplex/cmd/meterplex/cli/app"

// entitlementsRequests lists the commands of one request.
func Requests() []app.Command {
	ttl := `name:"ttl" placeholder:"DURATION" help:"How long from now, e.g. 300 (seconds) or 5m, at most 24h. It never gets shorter."`
	return []app.Command{
		{Name: "entitlements accounts", Op: "listAccounts", Columns: "feature periodKey used held openReservations limit limitBehavior",
			Tags: app.Tags{"tenantId": `required:""`}},
		{Name: "entitlements check", Op: "checkEntitlement", Own: app.Fresh{}, Run: checkEntitlement,
			Tags: app.Tags{"amount": `default:"1"`},
			Help: "Check whether the key's tenant may use an amount of a feature. Exit code 0 yes, 1 no."},
		{Name: "entitlements commit", Op: "commitReservation", Run: commitReservation, More: commitHelp,
			Tags: app.Tags{"overage": `enum:"deny,record"`,
				"eventId": `optional:"" help:"The usage's id: a repeat gets the first answer. Not given: a new one, which is printed."`}},
		{Name: "entitlements consume", Op: "consume", Args: "feature?", Own: together{}, Run: consume, More: consumeHelp,
			Help: "Use an amount if the limit allows it. Exit code 0 granted and recorded, 1 refused.", Tags: app.Tags{
				"amount":   `optional:"" help:"How much is used (default 1)."`,
				"metadata": `help:"Text kept with the event; may be repeated."`,
				"eventId":  `optional:"" help:"The request's id: a repeat gets the first answer. Not given: a new one, which is printed."`}},
		{Name: "entitlements extend", Op: "extendReservation", Tags: app.Tags{"ttlSeconds": ttl},
			Read: app.Reads{"ttlSeconds": app.Seconds(1)}},
		{Name: "entitlements list", Op: "listEntitlements", Own: app.Fresh{}, Run: entitlements},
		{Name: "entitlements reconcile", Op: "reconcileAccounts", Amend: app.RepairsForAReason, Run: reconcile, More: reconcileHelp},
		{Name: "entitlements release", Op: "releaseReservation"},
		{Name: "entitlements reservations", Op: "listReservations", Own: oneReservation{}, Run: reservations,
			Columns: "reservationId amount state periodKey expiresAt committed eventId endedAt position",
			Help:    "List the reservations of a feature in the order of their ids, or show one."},
		{Name: "entitlements reserve", Op: "reserve", Args: "feature?", Own: together{}, Run: reserve,
			Read: app.Reads{"ttlSeconds": app.Seconds(1)}, More: reserveHelp,
			Help: "Hold an amount if the limit allows it, until it is committed or released. Exit code 0 held, 1 refused.", Tags: app.Tags{
				"amount":        `optional:"" help:"How much is held (default 1)."`,
				"reservationId": `optional:"" help:"The reservation's id: a repeat gets it as it is. Not given: a new one, which is printed."`,
				"ttlSeconds":    `name:"ttl" placeholder:"DURATION" help:"How long it is held, e.g. 300 (seconds) or 5m (default 60s, at most 24h)."`}},
	}
}
