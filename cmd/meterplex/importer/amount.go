package importer

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// maxAmount is the greatest amount of a usage event.
const maxAmount = 1<<53 - 1

// maxDecimals is the greatest number of decimals that a scale can make whole.
const maxDecimals = 15

// amount is a row's amount of one feature.
type amount struct {
	feature string
	n       int64
	kind    string // typeCorrection or typeRetraction; "": usage
	ref     string // eventId of the usage to correct
}

// parse reads the amount. That of a correction is the new amount; a retraction has no amount.
func (a *amount) parse(field string, m *Mapping) (err error) {
	if a.kind != typeRetraction {
		a.n, err = m.parseAmount(field)
	} else if field != "" {
		err = fmt.Errorf("a retraction has no amount: leave %s out", clipped(field))
	}
	return err
}

// decimal matches the amounts that are read: digits, with or without decimals.
var decimal = regexp.MustCompile(`^([0-9]+)(?:\.([0-9]+))?$`)

// parseAmount reads an amount and multiplies it by the scale, exactly: amounts are money, so it must not guess or round.
func (m *Mapping) parseAmount(s string) (int64, error) {
	if n, err := strconv.ParseUint(s, 10, 63); err == nil && m.Scale <= 1 && n <= maxAmount {
		return int64(n), nil
	}
	parts := decimal.FindStringSubmatch(s)
	if parts == nil || len(s) > 100 {
		return 0, fmt.Errorf("%s is not a whole number from 0 to %d%s", clipped(s), int64(maxAmount), form(s))
	}
	if m.Delimiter == ';' && len(parts[2]) == 3 && len(parts[1]) <= 3 {
		return 0, fmt.Errorf("%s may be %s%s or %s.%s in a file with semicolons: write it without a separator of thousands, and with "+
			"other than three decimals",
			clipped(s), parts[1], parts[2], parts[1], parts[2])
	}
	decimals := strings.TrimRight(parts[2], "0")
	whole, _ := new(big.Int).SetString(parts[1]+decimals, 10)
	whole.Mul(whole, big.NewInt(max(m.Scale, 1)))
	n, rest := whole.QuoRem(whole, power(len(decimals)), new(big.Int))
	switch {
	case rest.Sign() != 0:
		return 0, m.fraction(s, len(decimals))
	case n.Cmp(big.NewInt(maxAmount)) > 0:
		return 0, fmt.Errorf("%s%s is above %d", clipped(s), m.scaled(), int64(maxAmount))
	}
	return n.Int64(), nil
}

// scaled names the scale, if there is one.
func (m *Mapping) scaled() string {
	if m.Scale <= 1 {
		return ""
	}
	return fmt.Sprintf(", multiplied by --scale %d,", m.Scale)
}

// power returns a power of ten.
func power(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// fraction is the error of an amount that is not whole, with the remedy.
func (m *Mapping) fraction(s string, decimals int) error {
	if decimals > maxDecimals {
		return fmt.Errorf("%s%s is not a whole number, and has %d decimals: round it in the export", clipped(s), m.scaled(), decimals)
	}
	return fmt.Errorf("%s%s is not a whole number: count a smaller unit, with --scale %s", clipped(s), m.scaled(), power(decimals))
}

// forms are texts that look like numbers, and what to do with them.
var forms = []struct {
	pattern *regexp.Regexp
	advice  string
}{
	{regexp.MustCompile(`^$`), ": the field is empty"},
	{regexp.MustCompile(`^-[0-9.,]+$`),
		": leave negative rows out with --where, or send them as corrections or retractions (--type-column)"},
	{regexp.MustCompile(`^[0-9]{1,3}([,.' _\x{a0}][0-9]{3})+(\.[0-9]+)?$`), ": write it without separators of thousands"},
	{regexp.MustCompile(`^[0-9]+,[0-9]+$`), ": write decimals with a point"},
	{regexp.MustCompile(`^[0-9.]+[eE][+-]?[0-9]+$`), ": write it without an exponent; spreadsheets drop digits in this form"},
	{regexp.MustCompile(`^\s+|\s+$`), ": remove the spaces around it"},
}

// form returns the advice on a text that is no amount.
func form(s string) string {
	for _, f := range forms {
		if f.pattern.MatchString(s) {
			return f.advice
		}
	}
	return ""
}
