package operate

import (
	"bytes"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
)

// The table has only the tables in which rows differed. The exit code is 1 if some did, repaired or not.
func TestARepairPrintsTheRowsThatDiffered(t *testing.T) {
	for _, c := range []struct {
		tables            []node.RepairedTable
		format, out, says string
		code              int
	}{
		{[]node.RepairedTable{{Table: "tenants"}, {Table: "plans"}}, "table", "table  different  unknown  left\n",
			"No row differs from the log.\n", app.ExitYes},
		{[]node.RepairedTable{{Table: "tenants"}, {Table: "features", Different: 2}, {Table: "keys", Unknown: 1}}, "table",
			"table     different  unknown  left\nfeatures  2          0        0\nkeys      0          1        0\n",
			"Rows that differed from the log: 3. All are repaired.\n", app.ExitNo},
		{[]node.RepairedTable{{Table: "prices", Different: 1, Unknown: 2, Left: 2}}, "ndjson",
			`{"table":"prices","different":1,"unknown":2,"left":2}` + "\n",
			"Rows that differed from the log: 3. Left: 2. Repair those with a superuser's login.\n", app.ExitNo},
	} {
		var out, errs bytes.Buffer
		a := &app.App{Ctx: t.Context(), Stdout: &out, Stderr: &errs}
		a.Flags.Output = c.format
		if code := a.ExitCode(printRepair(a, c.tables)); code != c.code || out.String() != c.out || errs.String() != c.says {
			t.Errorf("%v: exit code %d\n%s%s", c.tables, code, &out, &errs)
		}
	}
}
