// Package catalogue holds the commands of features, plans and prices.
package catalogue

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// parseEntitlement parses feature=limit,behavior,period,onIngest,price:key,trial:charged; the service
// validates the words.
func parseEntitlement(text string) (any, error) {
	feature, grant, limited := strings.Cut(text, "=")
	e := client.Entitlement{Feature: feature}
	if !limited {
		return e, nil
	}
	parts := strings.Split(grant, ",")
	if last := len(parts) - 1; last > 2 && parts[last] == "trial:charged" {
		e.ChargeTrial, parts = true, parts[:last]
	}
	if last := len(parts) - 1; last > 2 && strings.HasPrefix(parts[last], "price:") {
		e.Price, parts = strings.TrimPrefix(parts[last], "price:"), parts[:last]
	}
	if len(parts) < 3 || len(parts) > 4 {
		return e, fmt.Errorf("entitlement %q: expected feature=limit,behavior,period, e.g. api_calls=50000,HARD,MONTHLY", text)
	}
	if parts[0] != "unlimited" {
		limit, err := strconv.ParseInt(parts[0], 10, 64)
		if err != nil {
			return e, fmt.Errorf("entitlement %q: the limit must be a whole number or unlimited", text)
		}
		e.Limit = &limit
	}
	e.LimitBehavior, e.ResetPeriod = parts[1], parts[2]
	if len(parts) == 4 {
		e.OnIngest = parts[3]
	}
	return e, nil
}

const plansHelp = `An entitlement is written feature=limit,behavior,period and, if needed, how ingestion handles usage above
the limit:

    --entitlement api_calls=50000,HARD,MONTHLY
    --entitlement api_calls=50000,HARD,MONTHLY,record
    --entitlement api_calls=50000,SOFT,MONTHLY,price:calls
    --entitlement input_tokens=unlimited,SOFT,MONTHLY
    --entitlement sso

The limit is a whole number or unlimited; the behavior HARD or SOFT; the period MONTHLY, ANNUALLY or NEVER;
the last words onIngest of the API, record by default, the key of a price after price:, and trial:charged if usage of a trial is
charged. A BOOLEAN feature is its name alone.

A change of a plan does not change running subscriptions: subscriptions update --plan applies it.`
