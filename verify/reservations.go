package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// endsListed is the time for which the table has an ended reservation: the service keeps it a day longer.
const endsListed = 6 * 24 * time.Hour

const reservationsSQL = `SELECT tenant_id, reservation_id, feature, period_key, feature_type, subscription_id, amount,
	coalesce(granted_limit, -1), state,
 (extract(epoch FROM expires_at) * 1000000)::bigint, held_position, coalesce(ended_position, 0), coalesce((extract(epoch
 FROM ended_at) * 1000000)::bigint, 0),
 coalesce(event_id, ''), coalesce(committed, 0) FROM reservations
 WHERE CASE WHEN tenant_id = '00000000-0000-0000-0000-000000000000' THEN 0 ELSE get_byte(sha256(convert_to(tenant_id::text, 'UTF8')),
 0) % 32 END = $1`

// compareReservations compares the table with the log up to the head. Rows of reservations that ended long ago are not compared.
func (x *pass) compareReservations(ctx context.Context, tx pgx.Tx) error {
	var key reservationKey
	var is reservation
	seen := map[reservationKey]bool{}
	into := []any{&key.tenant, &key.id, &is.feature, &is.period, &is.featureType, &is.subscription, &is.amount, &is.limit, &is.state,
		&is.expires, &is.heldAt, &is.endedAt, &is.ended, &is.eventID, &is.committed}
	err := each(ctx, tx, reservationsSQL, []any{x.p}, into, func() error {
		x.reservations.n++
		want := x.accounts.reservations[key]
		switch {
		case want == nil && is.state != isHeld && is.ended < x.accounts.since:
			x.reservations.add(1, "of them ended long ago, not compared")
		case want == nil:
			x.reservations.fault("%s/%.60q is %s, the log does not hold it", key.tenant, key.id, is.state)
		default:
			seen[key] = true
			x.reservations.expect(is == *want, "%s/%.60q is %v, by the log %v", key.tenant, key.id, is, *want)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read reservations: %w", err)
	}
	listed := x.accounts.since + (endsKept - endsListed).Microseconds()
	for key, want := range x.accounts.reservations {
		if want.state == isHeld || want.ended >= listed {
			x.reservations.expect(seen[key], "%s/%.60q is missing, by the log it is %v", key.tenant, key.id, *want)
		}
	}
	return nil
}

// String lists the members that a row of the table has.
func (r reservation) String() string {
	return fmt.Sprintf("%s: %d of %s in %s (%s), limit %d, until %s, held at %d, ended at %d, committed %d as %.60q",
		r.state, r.amount, r.feature, r.period, r.subscription, r.limit, time.UnixMicro(r.expires).UTC(), r.heldAt, r.endedAt, r.committed,
		r.eventID)
}
