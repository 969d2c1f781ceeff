package domain

import (
	"go/ast"
	"go/parser"
	"go/token"
	"math/big"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

func micro(n int64) *int64 { return &n }

// tiers are 100 free units, then 50 at 7 with 1000 for the tier, then 3 each.
func tiers() []events.PriceTier {
	return []events.PriceTier{tier(micro(100), 0, 0), tier(micro(150), 7, 1000), tier(nil, 3, 0)}
}

func tier(upTo *int64, each, flat int64) events.PriceTier {
	return events.PriceTier{UpTo: upTo, MicroUnits: each, FlatMicroUnits: flat}
}

func TestChargesOfEachModel(t *testing.T) {
	huge, _ := new(big.Int).SetString("90071992547409930001", 10)
	flat, perUnit := Price{Model: PriceFlat, MicroUnits: micro(5)}, Price{Model: PricePerUnit, MicroUnits: micro(MaxMicroUnits)}
	packages := Price{Model: PricePackage, MicroUnits: micro(150_000), PackageSize: 1000}
	graduated, volume := Price{Model: PriceGraduated, Tiers: tiers()}, Price{Model: PriceVolume, Tiers: tiers()}
	for _, c := range []struct {
		price  *Price
		amount int64
		want   string
	}{
		{&flat, 0, "0"}, {&flat, 1, "5"}, {&flat, 1_000_000, "5"}, {&flat, -3, "-5"},
		{&perUnit, 0, "0"}, {&perUnit, 3, "27021597764222973"}, {&perUnit, -1, "-9007199254740991"},
		{&packages, 0, "0"}, {&packages, 1, "150000"}, {&packages, 999, "150000"}, {&packages, 1000, "150000"}, {&packages, 1001, "300000"},
		{&packages, -1, "-150000"}, {&packages, -1001, "-300000"},
		{&graduated, 0, "0"}, {&graduated, 100, "0"}, {&graduated, 101, "1007"}, {&graduated, 150, "1350"}, {&graduated, 151, "1353"},
		{&graduated, -151, "-1353"}, {&graduated, -100, "0"},
		{&volume, 0, "0"}, {&volume, 100, "0"}, {&volume, 101, "1707"}, {&volume, 150, "2050"}, {&volume, 151, "453"},
		{&volume, -151, "-453"},
	} {
		amount := big.NewInt(c.amount)
		if got := c.price.Charge(amount); got.String() != c.want || amount.Cmp(big.NewInt(c.amount)) != 0 {
			t.Errorf("%d units by %s cost %s instead of %s; the amount is %s now", c.amount, c.price.Model, got, c.want, amount)
		}
	}
	if got := perUnit.Charge(huge).String(); got != "811296384146066816966897250695370991" {
		t.Errorf("%s units cost %s", huge, got)
	}
}

// drawPrice draws a valid price with tiers of few units, so that amounts lie in all of them.
func drawPrice(t *rapid.T, models ...string) *Price {
	p := &Price{Model: rapid.SampledFrom(models).Draw(t, "model"), PackageSize: rapid.Int64Range(1, 20).Draw(t, "package")}
	p.MicroUnits = micro(rapid.Int64Range(0, 1000).Draw(t, "micro-units"))
	last := int64(0)
	for range rapid.IntRange(0, 4).Draw(t, "bounded tiers") {
		last += rapid.Int64Range(1, 15).Draw(t, "width")
		p.Tiers = append(p.Tiers, tier(micro(last), rapid.Int64Range(0, 1000).Draw(t, "rate"), rapid.Int64Range(0, 500).Draw(t, "flat")))
	}
	p.Tiers = append(p.Tiers, tier(nil, rapid.Int64Range(0, 1000).Draw(t, "rate"), rapid.Int64Range(0, 500).Draw(t, "flat")))
	return p
}

// tierOf returns the tier of a unit.
func (p *Price) tierOf(unit int64) *events.PriceTier {
	for i := range p.Tiers {
		if p.Tiers[i].UpTo == nil || unit <= *p.Tiers[i].UpTo {
			return &p.Tiers[i]
		}
	}
	return nil
}

// unitByUnit rates an amount by counting: the model of the test.
func (p *Price) unitByUnit(amount int64) (sum int64) {
	for unit := int64(1); unit <= amount; unit++ {
		switch p.Model {
		case PriceFlat:
			sum = *p.MicroUnits
		case PricePerUnit:
			sum += *p.MicroUnits
		case PricePackage:
			if (unit-1)%p.PackageSize == 0 {
				sum += *p.MicroUnits
			}
		case PriceGraduated:
			tier := p.tierOf(unit)
			if sum += tier.MicroUnits; unit == 1 || p.tierOf(unit-1) != tier {
				sum += tier.FlatMicroUnits
			}
		case PriceVolume:
			sum = unit*p.tierOf(unit).MicroUnits + p.tierOf(unit).FlatMicroUnits
		}
	}
	return sum
}

// A charge is the sum over the units, and that of a negative amount the negative of that of the positive.
func TestAChargeIsTheSumOverItsUnits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPrice(t, PriceFlat, PricePerUnit, PricePackage, PriceGraduated, PriceVolume)
		n := rapid.Int64Range(0, 100).Draw(t, "amount")
		got, back := p.Charge(big.NewInt(n)), p.Charge(big.NewInt(-n))
		if want := big.NewInt(p.unitByUnit(n)); got.Cmp(want) != 0 {
			t.Fatalf("%d units cost %s instead of %s", n, got, want)
		}
		if new(big.Int).Neg(got).Cmp(back) != 0 {
			t.Fatalf("%d units cost %s, and %d cost %s", n, got, -n, back)
		}
	})
}

// More usage never costs less, except by volume: there a cheaper tier rates all units.
func TestMoreUsageNeverCostsLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPrice(t, PriceFlat, PricePerUnit, PricePackage, PriceGraduated)
		low := rapid.Int64Range(-100, 100).Draw(t, "low")
		high := rapid.Int64Range(low, 200).Draw(t, "high")
		if less, more := p.Charge(big.NewInt(low)), p.Charge(big.NewInt(high)); less.Cmp(more) > 0 {
			t.Fatalf("%d units cost %s, and %d cost %s", low, less, high, more)
		}
	})
}

func TestMicroUnitsAsADecimal(t *testing.T) {
	for n, want := range map[string]string{"0": "0.00", "1": "0.000001", "-1": "-0.000001", "10": "0.00001", "1500000": "1.50",
		"1000000": "1.00", "28600000": "28.60", "123456789": "123.456789",
		"-1234500": "-1.2345", "90071992547409930001": "90071992547409.930001", "999999": "0.999999", "-20000": "-0.02"} {
		number, _ := new(big.Int).SetString(n, 10)
		if got := DecimalOfMicroUnits(number); got != want || number.String() != n {
			t.Errorf("%s is %s instead of %s", n, got, want)
		}
	}
}

func TestCurrencies(t *testing.T) {
	for _, code := range []string{"EUR", "AED", "ZWG", "JPY"} {
		if !IsCurrency(code) {
			t.Errorf("%s is a currency", code)
		}
	}
	for _, code := range []string{"", "eur", "EU", "EURO", "EUX", " EU", "R U", "AED AFN", "XXX", "XTS"} {
		if IsCurrency(code) {
			t.Errorf("%q is no currency", code)
		}
	}
	for code := range strings.FieldsSeq(currencies) {
		if len(code) != 3 || strings.ToUpper(code) != code || strings.Count(currencies, code) != 1 {
			t.Errorf("%q is no code, or is listed twice", code)
		}
	}
}

// No computation of money uses a number that is not exact.
func TestMoneyIsNeverAFloat(t *testing.T) {
	files := []string{"price.go", "../events/catalogue.go", "../commands/catalogue/prices.go", "../infra/postgres/store/folds.go",
		"../http/catalogue/prices.go", "../http/billing/charges.go",
		"../projections/periods/charges.go", "../projections/rebuild/priced.go"}
	more, err := filepath.Glob("../projections/prices/*.go")
	if err != nil || len(more) == 0 {
		t.Fatal(more, err)
	}
	for _, path := range append(files, more...) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		must.OK(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.FLOAT || n.Kind == token.IMAG {
					t.Errorf("%s has the number %s", path, n.Value)
				}
			case *ast.Ident:
				if strings.Contains(strings.ToLower(n.Name), "float") || n.Name == "Rat" || strings.HasPrefix(n.Name, "complex") {
					t.Errorf("%s uses %s", path, n.Name)
				}
			}
			return true
		})
	}
}
