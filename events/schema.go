package events

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"sync"
)

//go:embed schemas/*.json
var schemaFiles embed.FS

// Schema gives the JSON Schema of a subject's payload, as it is embedded.
func Schema(s Subject) ([]byte, error) {
	info, ok := s.Info()
	if !ok {
		return nil, fmt.Errorf("events: subject %d is not registered", s)
	}
	return schemaFiles.ReadFile("schemas/" + info.Name() + ".json")
}

var schemaURIs = sync.OnceValue(func() map[Subject]string {
	uris := make(map[Subject]string, len(registry))
	for _, info := range registry {
		schema, err := Schema(info.Subject)
		if err != nil {
			panic(fmt.Sprintf("events: %s has no schema: %v", info.Name(), err)) // a build without it fails its tests
		}
		sum := sha256.Sum256(schema)
		uris[info.Subject] = fmt.Sprintf("/api/v1/schemas/%s/v%d#sha256=%s", info.Type, info.Version, hex.EncodeToString(sum[:]))
	}
	return uris
})

// SchemaURI names the schema of a subject's payload and its content's SHA-256.
func SchemaURI(s Subject) string { return schemaURIs()[s] }
