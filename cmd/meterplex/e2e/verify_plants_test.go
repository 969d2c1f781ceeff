package e2e

import (
	"crypto/sha256"
	"fmt"
)

// partitionOf is where a tenant lives.
func partitionOf(tenant string) int { return int(sha256.Sum256([]byte(tenant))[0] % 32) }

func (w *world) plants(tenants []*tenant) []planted { _ = fmt.Sprint(); return nil }
