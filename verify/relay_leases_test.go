package verify

import "testing"

// P10: a relay that has reported since the first look holds its partitions. One that stopped a moment before it does not.
func TestP10_OnlyARelayThatStillReportsMustHoldPartitions(t *testing.T) {
	for reported := range int64(2) {
		v := &verifier{report: newReport()}
		free := map[int16]lease{3: {fence: 7}}
		before := &observation{relays: 1, cursors: free}
		if err := v.leases(t.Context(), before, &observation{relays: 1, reported: reported, cursors: free}); err != nil {
			t.Fatal(err)
		}
		if v.relayLeases.faults != reported {
			t.Errorf("%d relays reported: %d violations, want %d", reported, v.relayLeases.faults, reported)
		}
	}
}
