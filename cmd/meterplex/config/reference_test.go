package config

import (
	"cmp"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

var update = flag.Bool("update", false, "write docs/reference/settings.md")

// pages are the documents below docs that say more about a setting.
var pages = map[string]string{
	"METERPLEX_HTTP_TLS_CERT": "how-to/expose-an-instance.md", "METERPLEX_HTTP_ADDRESS_CONNECTIONS": "how-to/expose-an-instance.md",
	"METERPLEX_ADMIN_ADDR": "how-to/expose-an-instance.md#the-admin-address", "DATABASE_URL": "how-to/database-logins.md",
	"DATABASE_MIGRATE_URL": "how-to/database-logins.md", "DATABASE_READ_URL": "how-to/database-logins.md",
	"METERPLEX_DATABASE_CONNECTIONS": "how-to/sizing.md#connections", "KAFKA_BROKERS": "how-to/kafka-access.md",
	"METERPLEX_PIPE": "explanation/pipe.md", "METERPLEX_DATA_DIR": "reference/embedded-servers.md",
	"METERPLEX_ROLES": "../ARCHITECTURE.md#one-instance-or-many", "METERPLEX_BOOTSTRAP_OPERATOR_KEY": "reference/scopes.md",
	"METERPLEX_REBUILD_SHARE": "how-to/rebuild.md", "METERPLEX_ROLLBACK_KEEP": "how-to/rebuild.md",
	"METERPLEX_ERASURES": "how-to/erase-personal-data.md#restored-backups", "METERPLEX_WEBHOOK_ALLOW": "how-to/receive-webhooks.md",
	"METERPLEX_STRIPE_KEY": "how-to/deliver-to-stripe.md", "METERPLEX_CONSOLE": "how-to/use-the-console.md",
	"METERPLEX_PORTAL_FRAMES": "how-to/share-usage-with-a-tenant.md",
	"METERPLEX_ALLOW_UNSAFE":  "reference/unsafe-settings.md", "METERPLEX_TRACE_RATIO": "how-to/trace.md",
	"METERPLEX_URL": "reference/command-line.md", "METERPLEX_KEY": "reference/command-line.md",
}

// TestTheReferenceHoldsTheSettings: docs/reference/settings.md is written by go test ./cmd/meterplex/config -update. Each setting has a flag,
// whose help says its purpose.
func TestTheReferenceHoldsTheSettings(t *testing.T) {
	const file = "../../../docs/reference/settings.md"
	flags := map[string]reflect.StructTag{}
	for _, group := range []any{Connection{}, ServiceFlags{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(group)) {
			flags[f.Tag.Get("setting")] = f.Tag
		}
	}
	var b strings.Builder
	b.WriteString(head)
	linked := 0
	for _, s := range settings() {
		tag, given := flags[s.Name]
		if !given {
			t.Errorf("%s has no flag", s.Name)
			continue
		}
		name := "`" + s.Name + "`"
		if page := pages[s.Name]; page != "" {
			name, linked = "["+name+"](../"+page+")", linked+1
		}
		standard := cmp.Or(s.standard, "–")
		b.WriteString("| " + name + " | `--" + tag.Get("name") + "` | " + standard + " | " + strings.TrimSuffix(s.use, ".") + " |\n")
	}
	if linked != len(pages) {
		t.Errorf("pages names a setting that does not exist: %v", pages)
	}
	if *update {
		must.OK(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != b.String() {
		t.Errorf("docs/reference/settings.md differs from the settings (%v): run make generate", err)
	}
}

const head = `# Settings
Every setting of the service and of its commands, generated from package config (` + "`make generate`" + `). A setting with a page of its own links to it.

    DATABASE_URL=postgres://meterplex@db.internal/meterplex KAFKA_BROKERS=kafka-1:9092,kafka-2:9092,kafka-3:9092 meterplex serve

The value of a flag wins, then the environment, then a file of KEY=VALUE lines (` + "`--config` or `METERPLEX_CONFIG`" + `), then the default (–: none).
` + "`meterplex config print`" + ` shows each value with its origin, without secrets. Invalid values stop the start, and unknown variables that begin with
METERPLEX_ are reported.

| setting | flag | default | use |
|---|---|---|---|
`
