package events

import (
	"embed"
	"fmt"
)

//go:embed schemas/*.json
var schemaFiles embed.FS

// Schema returns the embedded JSON Schema of a subject's payload.
func Schema(s Subject) ([]byte, error) {
	info, ok := s.Info()
	if !ok {
		return nil, fmt.Errorf("events: subject %d is not registered", s)
	}
	return schemaFiles.ReadFile("schemas/" + info.Name() + ".json")
}
