package localkafka

import (
	"testing"

	"github.com/meterplex/meterplex/infra/local/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
