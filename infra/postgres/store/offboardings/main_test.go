package offboardings_test

import (
	"testing"

	"github.com/meterplex/meterplex/internal/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }
