package cli

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// FuzzEntitlement: a parsed --entitlement means the same as its text.
func FuzzEntitlement(f *testing.F) {
	for _, s := range []string{"a", "a=5,HARD,MONTHLY", "a=unlimited,SOFT,NEVER,record", "a=", "=1,2,3", "a=1", "a=-1,HARD,MONTHLY", "a=1.5,HARD,MONTHLY", "a=9223372036854775808,a,b", "a=1,2,3,4,5", "a=b=c", "a=+1,x,y", "a=007,x,y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := parseEntitlement(s)
		if err != nil {
			return
		}
		again := e.Feature
		if strings.Contains(s, "=") {
			limit := "unlimited"
			if e.Limit != nil {
				limit = fmt.Sprint(*e.Limit)
			}
			again += "=" + limit + "," + e.LimitBehavior + "," + e.ResetPeriod
			if strings.Count(s[strings.Index(s, "="):], ",") == 3 {
				again += "," + e.OnIngest
			}
		}
		if second, err := parseEntitlement(again); err != nil || !reflect.DeepEqual(second, e) {
			t.Fatalf("%q is %+v, and %q is %+v, %v", s, e, again, second, err)
		}
	})
}
