package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/gowebpki/jcs"
)

// frozenCharge is a line of the charges of a snapshot, with the members of the event.
type frozenCharge struct {
	Feature        string     `json:"feature"`
	SubscriptionID uuid.UUID  `json:"subscriptionId"`
	Grant          int64      `json:"grant"`
	Status         string     `json:"status"`
	From           *time.Time `json:"from,omitempty"`
	To             *time.Time `json:"to,omitempty"`
	Amount         string     `json:"amount"`
	EventCount     int64      `json:"eventCount"`
	Price          string     `json:"price,omitempty"`
	PriceVersion   int64      `json:"priceVersion,omitempty"`
	Currency       string     `json:"currency,omitempty"`
	MicroUnits     string     `json:"microUnits,omitempty"`
}

// addCharges collects the charges of a part of the figures.
func (x *pass) addCharges(n *frozenSnapshot, r *row, c *periodContent) {
	var list []frozenCharge
	if len(c.Charges) == 0 {
		return
	}
	err := json.Unmarshal(c.Charges, &list)
	x.frozenCharges.expect(err == nil && len(list) <= 500, "%s has %d charges, %v", x.at(r.position), len(list), err)
	n.charges = append(n.charges, list...)
}

// checkCharges compares the hash and the number of the event that closes a period with the charges before it.
func (x *pass) checkCharges(n *frozenSnapshot, r *row, c *periodContent) {
	x.frozenCharges.n++
	hash, err := n.chargesHash(x.at(n.cut).String())
	count := string(c.Charges)
	x.frozenCharges.expect(err == nil && hash == c.ChargesHash, "%s has the hash %.64s, its charges have %s, %v", x.at(r.position),
		c.ChargesHash, hash, err)
	x.frozenCharges.expect(count == strconv.Itoa(len(n.charges)), "%s has %.20s charges, the events before it %d", x.at(r.position), count,
		len(n.charges))
	amounts := map[figure]*sum{}
	for i := range n.charges {
		l := &n.charges[i]
		add(amounts, n.figureOf(l.Feature, l.SubscriptionID), bigOf(l.Amount), l.EventCount)
	}
	for i := range n.lines {
		l := &n.lines[i]
		s := amounts[n.figureOf(l.Feature, l.SubscriptionID)]
		x.frozenSums.expect(s != nil && s.amount.String() == l.Amount && s.events == l.EventCount,
			"the charges before %s are not the figure %.40s of %.60s", x.at(r.position), l.Amount, l.Feature)
	}
}

// chargesHash returns the SHA-256 of a snapshot's charges, as docs/reference/prices.md defines it.
func (n *frozenSnapshot) chargesHash(cut string) (string, error) {
	list := n.charges
	if list == nil {
		list = []frozenCharge{}
	}
	doc, err := json.Marshal(map[string]any{"cut": cut, "lines": list, "periodKey": n.period, "snapshot": n.number, "tenantId": n.tenant})
	if err != nil {
		return "", fmt.Errorf("write the charges: %w", err)
	}
	doc, fault := jcs.Transform(doc)
	if fault != nil {
		return "", fault
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:]), nil
}

const (
	frozenChargesSQL = `SELECT tenant_id, period_key, snapshot, feature, subscription_id, grant_number, status, starts, ends, amount::text,
		event_count,
 coalesce(price, ''), coalesce(price_version, 0), coalesce(currency, ''), coalesce(micro_units::text, '') FROM period_charges` + ofPartition

	// The terms of grants: the entitlement of the subscription's snapshot, and the version of its price.
	grantTermsSQL = `SELECT k.n, coalesce(g.value ->> 'price', ''), coalesce((g.value ->> 'priceVersion')::bigint, 0),
		coalesce((g.value ->> 'chargeTrial')::boolean, false), h.snapshot ->> 'status'
 FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[]) WITH ORDINALITY AS k (tenant_id, subscription_id, grant_number, feature, n)
 CROSS JOIN LATERAL (SELECT h.snapshot FROM subscription_history h WHERE h.tenant_id = k.tenant_id
 AND h.snapshot ->> 'id' = k.subscription_id::text
  AND (h.from_position = k.grant_number OR k.grant_number = -1) ORDER BY h.from_position LIMIT 1) h
 CROSS JOIN LATERAL json_array_elements(h.snapshot -> 'entitlements') AS g (value) WHERE g.value ->> 'feature' = k.feature`

	priceVersionsSQL = `SELECT key, version, currency, model, coalesce(micro_units::text, ''), package_size, tiers FROM prices`
)

// compareCharges compares the table with the events, and charges the frozen lines again: by the terms of their grants, and by the versions
// of prices.
func (x *pass) compareCharges(ctx context.Context, tx pgx.Tx) error {
	rows := map[*frozenSnapshot]map[string]bool{}
	var k periodKey
	var number int
	var l frozenCharge
	err := each(ctx, tx, frozenChargesSQL, []any{x.p}, []any{&k.tenant, &k.period, &number, &l.Feature, &l.SubscriptionID, &l.Grant,
		&l.Status, &l.From, &l.To, &l.Amount, &l.EventCount,
		&l.Price, &l.PriceVersion, &l.Currency, &l.MicroUnits}, func() error {
		n := x.periods.snapshot(k, number)
		if rows[n] == nil {
			rows[n] = map[string]bool{}
		}
		rows[n][l.text()] = true
		x.frozenCharges.expect(n != nil, "period_charges has %.60s of snapshot %d of %s, the log has not", l.Feature, number, k)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read period_charges: %w", err)
	}
	prices, err := readPriceVersions(ctx, tx)
	if err != nil {
		return err
	}
	for _, p := range x.periods.of {
		for _, n := range p.snapshots {
			if n.closed == 0 || len(n.charges) == 0 && len(rows[n]) == 0 {
				continue
			}
			same := len(rows[n]) == len(n.charges)
			for i := range n.charges {
				same = same && rows[n][n.charges[i].text()]
			}
			x.frozenCharges.expect(same, "the charges of snapshot %d of %s differ from those of its events before %s", n.number,
				n.periodKey, x.at(n.closed))
			if err := x.chargeAgain(ctx, tx, n, prices); err != nil {
				return err
			}
		}
	}
	return nil
}

// text lists the members of a line.
func (l *frozenCharge) text() string {
	at := func(t *time.Time) string {
		if t == nil {
			return "-"
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprint(l.Feature, l.SubscriptionID, l.Grant, l.Status, at(l.From), at(l.To), " ", l.Amount, " ", l.EventCount, l.Price, " ",
		l.PriceVersion, l.Currency, l.MicroUnits)
}

func readPriceVersions(ctx context.Context, tx pgx.Tx) (map[priceVersion]priceTerms, error) {
	found := map[priceVersion]priceTerms{}
	var p priceTerms
	var tiers []byte
	err := each(ctx, tx, priceVersionsSQL, nil, []any{&p.Key, &p.Version, &p.Currency, &p.Model, &p.MicroUnits, &p.PackageSize, &tiers},
		func() error {
			p.Tiers = nil
			err := json.Unmarshal(tiers, &p.Tiers)
			found[priceVersion{p.Key, p.Version}] = p
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("read the versions of prices: %w", err)
	}
	return found, nil
}

// chargeAgain computes the charges of a snapshot from its lines.
func (x *pass) chargeAgain(ctx context.Context, tx pgx.Tx, n *frozenSnapshot, prices map[priceVersion]priceTerms) error {
	var tenants, subscriptions []uuid.UUID
	var grants []int64
	var features []string
	for i := range n.charges {
		l := &n.charges[i]
		tenants, subscriptions, grants, features = append(tenants, n.tenant), append(subscriptions, l.SubscriptionID),
			append(grants, l.Grant), append(features, l.Feature)
	}
	type terms struct {
		price  string
		number int64
		free   bool
	}
	of := make([]terms, len(n.charges))
	var i int
	var t terms
	var charged bool
	var status string
	err := each(ctx, tx, grantTermsSQL, []any{tenants, subscriptions, grants, features}, []any{&i, &t.price, &t.number, &charged, &status},
		func() error {
			l := &n.charges[i-1]
			t.free = l.Grant == -1 || status == "TRIALING" && !charged
			of[i-1] = t
			x.frozenCharges.expect(l.Grant == -1 && l.Status == "BEFORE" || l.Status == status,
				"%s of %.60s is %s by grant %d, which is %s",
				n.periodKey, l.Feature, l.Status, l.Grant, status)
			return nil
		})
	if err != nil {
		return fmt.Errorf("read the terms of grants: %w", err)
	}
	end := new(big.Int)
	for i := range n.charges {
		l, t := &n.charges[i], of[i]
		if i > 0 && n.charges[i-1].Feature != l.Feature {
			end = new(big.Int)
		}
		want := ""
		if p, ok := prices[priceVersion{t.price, t.number}]; ok {
			cost := new(big.Int)
			if !t.free {
				start := end
				end = new(big.Int).Add(start, bigOf(l.Amount))
				cost.Sub(p.cost(end), p.cost(start))
			}
			want = cost.String()
		}
		x.frozenCharges.expect(l.MicroUnits == want && l.Price == t.price && (t.price == "" || l.PriceVersion == t.number),
			"snapshot %d of %s charges %.40s of %.60s by version %d of %.60q: %.40s, the price of its grant gives %s", n.number,
			n.periodKey, l.Amount, l.Feature, l.PriceVersion, l.Price, l.MicroUnits, want)
	}
	return nil
}

// cost returns the cost of an amount; that of an amount below 0 is the negative of its positive.
func (p *priceTerms) cost(amount *big.Int) *big.Int {
	if amount.Sign() == 0 {
		return new(big.Int)
	}
	units, each, cost := new(big.Int).Abs(amount), bigOf(p.MicroUnits.String()), new(big.Int)
	switch p.Model {
	case "flat":
		cost.Set(each)
	case "per_unit":
		cost.Mul(units, each)
	case "package":
		begun, rest := new(big.Int).QuoRem(units, big.NewInt(p.PackageSize), new(big.Int))
		if rest.Sign() > 0 {
			begun.Add(begun, big.NewInt(1))
		}
		cost.Mul(begun, each)
	case "graduated":
		below := new(big.Int)
		for i := range p.Tiers {
			if last := p.Tiers[i].last(units); last.Cmp(below) > 0 {
				cost.Add(cost, p.Tiers[i].cost(new(big.Int).Sub(last, below)))
				below = last
			}
		}
	default:
		at := slices.IndexFunc(p.Tiers, func(t priceTier) bool { return t.last(units).Cmp(units) == 0 })
		cost = p.Tiers[at].cost(units)
	}
	if amount.Sign() < 0 {
		cost.Neg(cost)
	}
	return cost
}

// last returns the last of the units that the tier holds.
func (t *priceTier) last(units *big.Int) *big.Int {
	if t.UpTo == nil || units.Cmp(big.NewInt(*t.UpTo)) < 0 {
		return units
	}
	return big.NewInt(*t.UpTo)
}

func (t *priceTier) cost(units *big.Int) *big.Int {
	cost := new(big.Int).Mul(units, bigOf(t.MicroUnits.String()))
	return cost.Add(cost, bigOf(t.FlatMicroUnits.String()))
}
