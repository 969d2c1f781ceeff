package domain

import (
	"math/big"
	"strings"

	"github.com/meterplex/meterplex/events"
)

// Models of prices.
const (
	PriceFlat      = "flat"      // one amount of money, whatever the amount used
	PricePerUnit   = "per_unit"  // for each unit
	PricePackage   = "package"   // for each package of units that is begun
	PriceGraduated = "graduated" // each unit at the rate of the tier in which it lies
	PriceVolume    = "volume"    // all units at the rate of the tier in which the last one lies
)

// Bounds of a price. MaxMicroUnits is the greatest integer that every JSON implementation keeps exactly.
const (
	MaxMicroUnits = 1<<53 - 1
	MaxPriceTiers = 100
)

// Price is a price, with the rules by which it rates amounts.
type Price events.Price

// Charge returns the price of an amount in micro-units. An amount below 0, which corrections of a closed period can leave, has
// the negative of the price of its positive: a credit is rated as the usage that it takes back. An amount of 0 costs nothing.
func (p *Price) Charge(amount *big.Int) *big.Int {
	units := new(big.Int).Abs(amount)
	charge := new(big.Int)
	if units.Sign() > 0 {
		charge = p.rate(units)
	}
	if amount.Sign() < 0 {
		charge.Neg(charge)
	}
	return charge
}

// rate returns the price of 1 unit or more.
func (p *Price) rate(units *big.Int) *big.Int {
	switch p.Model {
	case PriceFlat:
		return big.NewInt(*p.MicroUnits)
	case PricePerUnit:
		return new(big.Int).Mul(units, big.NewInt(*p.MicroUnits))
	case PricePackage:
		size := big.NewInt(p.PackageSize)
		begun := new(big.Int).Add(units, new(big.Int).Sub(size, big.NewInt(1)))
		return begun.Mul(begun.Div(begun, size), big.NewInt(*p.MicroUnits))
	case PriceGraduated:
		return p.graduated(units)
	}
	return p.volume(units)
}

// graduated rates each unit in its tier. The flat amount of a tier is due once a unit lies in it.
func (p *Price) graduated(units *big.Int) *big.Int {
	charge, below := new(big.Int), new(big.Int) // below is the last unit of the tiers before
	for i := range p.Tiers {
		t := &p.Tiers[i]
		if units.Cmp(below) <= 0 {
			break
		}
		last := units
		if t.UpTo != nil && units.Cmp(big.NewInt(*t.UpTo)) > 0 {
			last = big.NewInt(*t.UpTo)
		}
		charge.Add(charge, rate(t, new(big.Int).Sub(last, below)))
		below = last
	}
	return charge
}

// volume rates all units in the tier of the last one.
func (p *Price) volume(units *big.Int) *big.Int {
	for i := range p.Tiers {
		if t := &p.Tiers[i]; t.UpTo == nil || units.Cmp(big.NewInt(*t.UpTo)) <= 0 {
			return rate(t, units)
		}
	}
	return new(big.Int) // the last tier has no bound
}

// rate returns the price of units of a tier.
func rate(t *events.PriceTier, units *big.Int) *big.Int {
	charge := new(big.Int).Mul(units, big.NewInt(t.MicroUnits))
	return charge.Add(charge, big.NewInt(t.FlatMicroUnits))
}

// microDigits are the digits behind the point of an amount of money in micro-units.
const microDigits = 6

// DecimalOfMicroUnits writes an amount of micro-units as a decimal of the currency's unit, exactly, with 2 to 6 digits behind
// the point: 1500000 is 1.50.
func DecimalOfMicroUnits(n *big.Int) string {
	digits := new(big.Int).Abs(n).String()
	if missing := microDigits + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	whole, fraction := digits[:len(digits)-microDigits], digits[len(digits)-microDigits:]
	for len(fraction) > 2 && strings.HasSuffix(fraction, "0") {
		fraction = fraction[:len(fraction)-1]
	}
	if n.Sign() < 0 {
		whole = "-" + whole
	}
	return whole + "." + fraction
}

// currencies are the alphabetic codes of ISO 4217, without those of metals, funds and tests.
const currencies = " AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF " +
	"CLP CNY COP CRC CUP CVE CZK" +
	" DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES " +
	"KGS KHR KMF KPW KRW KWD KYD" +
	" KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP " +
	"PKR PLN PYG QAR RON RSD RUB" +
	" RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES " +
	"VND VUV WST XAF XCD XCG XOF" +
	" XPF YER ZAR ZMW ZWG "

// IsCurrency reports whether a text is a currency's code by ISO 4217, in upper case.
func IsCurrency(text string) bool {
	return len(text) == 3 && !strings.Contains(text, " ") && strings.Contains(currencies, " "+text+" ")
}
