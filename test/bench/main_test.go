package main

import (
	"testing"

	"github.com/meterplex/meterplex/infra/local/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }
