package client

import (
	"strconv"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/domain/codes"
	"github.com/meterplex/meterplex/domain/intake"
)

// The client and the remedies of the codes do not import the service's constant.
func TestTheLimitOfABatchIsTheServices(t *testing.T) {
	if MaxBatch != intake.MaxBatch {
		t.Errorf("the client sends %d events in a batch, and the service accepts %d", MaxBatch, intake.MaxBatch)
	}
	for _, name := range []string{"batch_empty", "batch_too_large"} {
		if code, _ := codes.Find(name); !strings.Contains(code.Remedy, " "+strconv.Itoa(intake.MaxBatch)+" events") {
			t.Errorf("the remedy of %s is %q", name, code.Remedy)
		}
	}
}
