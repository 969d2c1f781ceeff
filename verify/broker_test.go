package verify

import (
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// A partition without a leader has one soon: the check is not undetermined.
func TestOffsetsAreReadOnceThePartitionHasALeader(t *testing.T) {
	errs := []error{&kadm.ShardErrors{Name: "ListOffsets", Errs: []kadm.ShardError{{Err: kerr.LeaderNotAvailable}}},
		fmt.Errorf("read: %w", kerr.NotLeaderForPartition), nil}
	requests := 0
	got, err := awaitLeader(t.Context(), func() (int, error) { requests++; return requests, errs[requests-1] })
	if got != 3 || err != nil {
		t.Errorf("%d requests, %v, want 3 and no error", got, err)
	}
	if _, err := awaitLeader(t.Context(), func() (int, error) {
		return 0, kerr.UnknownTopicOrPartition
	}); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("a missing topic is %v", err)
	}
}
