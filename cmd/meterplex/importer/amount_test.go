package importer

import (
	"strings"
	"testing"
)

// TestAmountsAreExact: whole decimals are whole, a scale multiplies exactly, and other texts are refused with the remedy.
func TestAmountsAreExact(t *testing.T) {
	for _, c := range []struct {
		scale int64
		in    string
		n     int64
		want  string // in the error
	}{
		{1, "0", 0, ""}, {1, "007", 7, ""}, {1, "9007199254740991", maxAmount, ""}, {1, "253.0", 253, ""},
		{1, "9007199254740991.000", maxAmount, ""},
		{1000, "0.253", 253, ""}, {1000, "2", 2000, ""}, {1_000_000, "0.0000010", 1, ""}, {3, "0.5000", 0, "--scale 10"}, {2, "0.5", 1, ""},
		{8, "0.125", 1, ""},
		{1000, "9007199254740.991", maxAmount, ""}, {1000, "9007199254740.992", 0, "is above"}, {1000, "0.0001", 0, "--scale 10000"},
		{1, "0.253", 0, "--scale 1000"}, {1, "1.5", 0, "--scale 10"}, {1, "0.30000000000000004", 0, "round it in the export"},
		{1, "9007199254740992", 0, "is above"},
		{1, "", 0, "empty"}, {1, "-1", 0, "--where"}, {1, "-0.5", 0, "--where"}, {1, "+1", 0, "whole number"}, {1, " 1", 0, "spaces"},
		{1, "1,234", 0, "thousands"}, {1, "1 234", 0, "thousands"},
		{1, "1,234.50", 0, "thousands"}, {1, "12,5", 0, "point"}, {1, "1e3", 0, "exponent"}, {1, "1.23457E+11", 0, "exponent"},
		{1, "4.5E-7", 0, "exponent"},
		{1, "0x10", 0, "whole number"}, {1, "٣", 0, "whole number"}, {1, "NaN", 0, "whole number"}, {1, "1.", 0, "whole number"},
		{1, "$5", 0, "whole number"},
	} {
		n, err := (&Mapping{Scale: c.scale}).parseAmount(c.in)
		if c.want == "" && (err != nil || n != c.n) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q x %d is %d, %v; want %d %s", c.in, c.scale, n, err, c.n, c.want)
		}
	}
	german := &Mapping{Delimiter: ';'}
	if n, err := german.parseAmount("1.000"); err == nil {
		t.Errorf("1.000 in a file with semicolons is %d: it may be 1000", n)
	}
	if n, err := german.parseAmount("253.0"); err != nil || n != 253 {
		t.Errorf("%d, %v", n, err)
	}
}
