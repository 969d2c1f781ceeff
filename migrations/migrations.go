// Package migrations holds the database's schema as numbered SQL files, embedded
// and forward only. It holds no Go logic.
package migrations

import "embed"

// FS holds NNNN_name.sql, in goose's form.
//
//go:embed *.sql
var FS embed.FS
