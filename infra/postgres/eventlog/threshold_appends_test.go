package eventlog

import (
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

// An append crosses no removed threshold, although the tenant has others. One that is defined again is another threshold.
func TestRemovedThresholdBesideOthersIsNotCrossed(t *testing.T) {
	f := newThresholdFixture(t, migrated(t))
	f.threshold("f", 0, 50)
	f.threshold("f", 0, 40)
	_, err := f.pool.Exec(t.Context(), `UPDATE thresholds SET removed = position + 1 WHERE tenant_id = $1 AND amount = 50`, f.tenant)
	must.OK(f, err)
	f.counted(60)
	f.expect("1: f 40 ( of 100) from 0 to 60 by 2 true")
	f.threshold("f", 0, 50)
	f.counted(-20, 20)
	f.expect("1: f 40 ( of 100) from 0 to 60 by 2 true", "2: f 50 ( of 100) from 40 to 60 by 2 true")
}

// Each period begins at 0, and crosses a threshold on its own, also in one append.
func TestThresholdIsCrossedByTheAmountOfItsPeriod(t *testing.T) {
	f := newThresholdFixture(t, migrated(t))
	f.threshold("f", 0, 50)
	may, june := f.verdict(901, "f", 45), f.verdict(902, "f", 20)
	may.Account.PeriodKey, june.Account.PeriodKey = "2026-05", "2026-06"
	f.append(may, june)
	f.expect()
	may, june = f.verdict(903, "f", 5), f.verdict(904, "f", 30)
	may.Account.PeriodKey, june.Account.PeriodKey = "2026-05", "2026-06"
	f.append(june, may)
	f.expect("0: f 50 ( of ) from 20 to 50 by 2 true", "0: f 50 ( of ) from 45 to 50 by 2 true")
}
