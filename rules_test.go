// Package meterplex tests the project's structural rules.
package meterplex

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

const module = "github.com/meterplex/meterplex/"

// layer lists the allowed imports of a folder's packages: our own folders, including
// subfolders without a row of their own, and third-party modules.
type layer struct {
	ours, others []string
	anyOther     bool
}

// layers holds the layer of each folder: imports point down. The row of the longest
// matching folder applies. A new folder needs a decision, not an exception.
var layers = map[string]layer{
	"events":            {others: []string{"github.com/google/uuid"}},
	"domain":            {ours: []string{"events"}, others: []string{"github.com/google/uuid"}},
	"domain/intake":     {ours: []string{"domain", "domain/strictjson", "events"}},
	"domain/push":       {ours: []string{"domain", "events"}, others: []string{"github.com/google/uuid"}},
	"domain/webhook":    {ours: []string{"domain", "domain/strictjson", "events"}, others: []string{"github.com/google/uuid"}},
	"domain/strictjson": {},
	"domain/loop":       {ours: []string{"domain/retries"}},
	"domain/retries":    {},
	"domain/seats":      {others: []string{"github.com/google/uuid"}},
	"domain/codes":      {},
	"domain/csvtext":    {},
	"commands":          {ours: []string{"domain", "events"}, others: []string{"github.com/google/uuid"}},

	// The folders of commands share its base. Each knows no other, but for these.
	"commands/metering":    subject(),
	"commands/catalogue":   subject(),
	"commands/billing":     subject(),
	"commands/webhooks":    subject(),
	"commands/repair":      subject("commands/billing"), // of what is repaired, closed periods get adjustments and pushes
	"commands/offboarding": subject("commands/metering", "commands/catalogue", "commands/billing", "commands/webhooks"),

	"projections": {ours: []string{"events", "domain"}, others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},

	// Models do not import each other, and the packages that run them import no model.
	"projections/query":   projection("projections", "domain/seats"),
	"projections/consume": projection("projections", "projections/query", "domain/loop"),
	"projections/prices":  projection("projections/query"),
	"projections/rebuild": projection("projections", "projections/query", "projections/consume", "projections/prices",
		"projections/state", "domain/loop"),
	"projections/validate":     projection("projections"),
	"projections/usage":        projection("projections", "projections/query", "projections/rebuild", "projections/prices"),
	"projections/entitlements": projection("projections", "projections/query"),
	"projections/deadletters":  projection("projections", "projections/query"),
	"projections/series":       projection("projections", "projections/query"),
	"projections/refusals":     projection("projections", "projections/query"),
	"projections/audit":        projection("projections", "projections/query"),
	"projections/state":        projection("projections", "projections/query", "domain/push", "domain/webhook", "domain/loop"),
	"projections/overview":     projection("projections", "projections/query", "projections/state"), // in memory: it reads no database
	"projections/periods":      projection("projections", "projections/query", "projections/prices"),
	"projections/models": projection("projections", "projections/query", "projections/rebuild", "projections/usage",
		"projections/entitlements",
		"projections/deadletters", "projections/series", "projections/refusals", "projections/audit", "projections/periods",
		"projections/state"),

	"migrations": {},

	// For tests only.
	"internal/tier": {},
	"internal/must": {},
	"internal/localtest": {ours: []string{"infra/local", "internal/jsonschema", "events", "projections"},
		others: []string{"github.com/jackc/pgx/v5", "go.uber.org/goleak"}},
	"internal/kafkatest": {ours: []string{"infra/local", "infra/local/localkafka", "internal/localtest"}},
	"internal/childtest": {ours: []string{"infra/local"}},
	"internal/pipetest":  {ours: []string{"events", "infra"}, others: []string{"github.com/ThreeDotsLabs/watermill"}},
	"internal/logtest": {ours: []string{"internal/localtest", "internal/must", "events", "infra", "infra/postgres",
		"infra/postgres/eventlog", "projections/consume"}, others: []string{"github.com/jackc/pgx/v5"}},
	"internal/stripetest": {},
	"internal/jsonschema": {ours: []string{"events"}, others: []string{"github.com/santhosh-tekuri/jsonschema/v6"}},
	"internal/projectionstest": {ours: []string{"internal/must", "commands", "commands/metering", "commands/repair", "domain", "events",
		"internal/localtest", "internal/logtest", "infra/postgres", "infra/postgres/eventlog", "infra/postgres/eventlog/recent",
		"infra/postgres/store", "infra/postgres/store/repairs", "infra",
		"projections", "projections/query", "projections/consume", "projections/rebuild", "projections/validate", "projections/usage",
		"projections/entitlements",
		"projections/deadletters", "projections/series", "projections/audit", "projections/models"}, anyOther: true},

	"infra":         {ours: []string{"commands", "domain", "events", "projections", "migrations", "infra"}, anyOther: true},
	"infra/webhook": {ours: []string{"commands/webhooks", "domain/webhook", "events", "infra"}},

	// The server, then the log in it, then the rows recorded in the log. A new epoch of the log revokes
	// the relay's leases, so that the cursors are below the log, and the relay is above it.
	"infra/postgres": {ours: []string{"domain/loop", "migrations"}, anyOther: true},
	"infra/postgres/eventlog": {ours: []string{"commands", "commands/metering", "domain", "domain/loop", "events", "infra/postgres",
		"infra/postgres/eventlog/recent",
		"infra/postgres/eventlog/crossings", "infra/postgres/eventlog/dedupe", "infra/postgres/eventlog/origins",
		"infra/postgres/eventlog/reads", "infra/postgres/eventlog/server", "infra/postgres/eventlog/tables", "infra/relay/cursors"},
		anyOther: true},
	"infra/postgres/eventlog/recent": {ours: []string{"events"}}, // in memory: it reads no database
	"infra/postgres/eventlog/origins": {ours: []string{"commands", "events", "infra/postgres"},
		others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"infra/postgres/eventlog/crossings": {ours: []string{"domain", "events", "infra/postgres", "infra/postgres/eventlog/server",
		"infra/postgres/eventlog/tables"}, others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"infra/postgres/eventlog/dedupe": {ours: []string{"events", "infra/postgres"}, others: []string{"github.com/google/uuid"}},
	"infra/postgres/eventlog/reads": {ours: []string{"events", "infra/postgres", "infra/postgres/eventlog/origins",
		"infra/postgres/eventlog/server"}, others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"infra/postgres/eventlog/tables": {ours: []string{"domain", "events", "infra/postgres", "infra/postgres/eventlog/server"},
		others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"infra/postgres/eventlog/server": {ours: []string{"events", "infra/postgres"},
		others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"infra/postgres/store": {ours: []string{"commands", "commands/metering", "commands/catalogue", "commands/billing", "commands/webhooks",
		"commands/repair", "commands/offboarding",
		"domain", "domain/loop", "domain/webhook", "domain/seats", "events", "projections", "projections/validate", "projections/periods",
		"projections/query",
		"infra/postgres", "infra/postgres/eventlog", "infra/postgres/eventlog/server"}, anyOther: true},
	"infra/postgres/store/closes": {ours: []string{"commands", "commands/billing", "domain", "events", "projections", "projections/periods",
		"projections/query", "infra/postgres", "infra/postgres/eventlog",
		"infra/postgres/store"}, others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"infra/postgres/store/offboardings": {ours: []string{"infra/postgres/store/closes", "commands/billing", "commands/metering",
		"commands/offboarding", "commands/repair", "commands", "domain", "events", "projections", "infra/postgres", "infra/postgres/store"},
		others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"infra/postgres/store/pushes": {ours: []string{"commands/billing", "domain", "domain/push", "events", "infra/postgres",
		"infra/postgres/store", "infra/postgres/store/closes"}, others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"infra/postgres/store/repairs": {ours: []string{"commands", "commands/repair", "domain", "events", "projections", "projections/consume",
		"projections/rebuild",
		"infra/postgres", "infra/postgres/eventlog", "infra/postgres/store", "infra/relay/cursors"},
		others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"infra/relay/cursors": {ours: []string{"events"}, others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},

	// The local PostgreSQL, and the words that it shares with the local Kafka, need no client of Kafka.
	"infra/local":            {ours: []string{"infra/local"}, others: []string{"github.com/jackc/pgx/v5"}},
	"infra/local/localkafka": {ours: []string{"infra/local"}, others: []string{"github.com/twmb/franz-go"}},

	// api is the frame. Handlers of a subject know it, and no other subject's, but for the sagas that pushes begin.
	"http": {ours: []string{"commands", "domain"}, others: []string{"github.com/go-chi/chi"}},
	"http/api": {ours: []string{"http/admission", "http/auth", "http/console", "http/edge", "http/problem", "http/shape", "commands",
		"commands/billing", "commands/catalogue",
		"commands/metering", "commands/offboarding", "commands/repair", "commands/webhooks", "domain", "domain/codes", "domain/csvtext",
		"domain/strictjson", "events",
		"projections/entitlements", "projections/models", "projections/overview", "projections/query"},
		others: []string{"github.com/google/uuid",
			"github.com/go-chi/chi", "github.com/klauspost/compress", "github.com/danielgtaylor/huma",
			"github.com/prometheus/client_golang"}},
	"http/usage": handlers("http/buffer", "domain/intake", "commands/metering", "projections/audit", "projections/refusals",
		"projections/series", "projections/usage"),
	"http/events":       handlers("events/codec", "projections/audit"),
	"http/entitlements": handlers("http/buffer", "domain/intake", "commands/metering", "commands/repair", "projections/entitlements"),
	"http/tenants":      handlers("domain/webhook", "commands/catalogue", "commands/webhooks"),
	"http/catalogue":    handlers("commands/catalogue", "projections/periods"),
	"http/repair": handlers("commands/repair", "projections/audit", "projections/deadletters", "projections/models",
		"projections/rebuild", "projections/state", "projections/usage"),
	"http/billing": handlers("http/operate", "domain/push", "commands/billing", "projections/periods"),
	"http/operate": handlers("domain/codes", "projections/audit", "projections/overview"),

	// The steps before a handler know no handler and no read model.
	"http/problem": {ours: []string{"commands", "domain", "domain/codes"}},
	"http/auth": {ours: []string{"http/problem", "commands", "commands/catalogue", "domain", "events"},
		others: []string{"github.com/google/uuid"}},
	"http/admission": {others: []string{"github.com/google/uuid"}},
	"http/buffer":    {},
	"http/body":      {ours: []string{"http/admission", "http/buffer", "http/problem"}, others: []string{"github.com/klauspost/compress"}},
	"http/shape":     {ours: []string{"http/problem", "domain/strictjson"}, others: []string{"github.com/danielgtaylor/huma"}},
	"http/edge": {ours: []string{"http/admission", "http/auth", "http/body", "http/buffer", "http/problem", "http/shape", "commands",
		"commands/catalogue", "domain", "events"},
		others: []string{"github.com/google/uuid", "github.com/prometheus/client_golang"}},

	// The pages of the console know no handler, read model or rule: they are a client of the API.
	"http/console": {ours: []string{"http/auth", "http/edge", "http/problem", "http/shape", "commands", "domain"},
		others: []string{"github.com/google/uuid", "github.com/danielgtaylor/huma"}},
	"http/console/operate":      pages(),
	"http/console/tenants":      pages("http/console/entitlements"),
	"http/console/usage":        pages(),
	"http/console/events":       pages(),
	"http/console/entitlements": pages(),
	"http/console/catalogue":    pages(),
	"http/console/billing":      pages("http/console/tenants"),
	"http/console/repair":       pages(),
	"http/console/pages": pages("http/console/operate", "http/console/tenants", "http/console/usage", "http/console/events",
		"http/console/entitlements", "http/console/catalogue",
		"http/console/billing", "http/console/repair"),

	"cmd": {ours: []string{"commands", "domain", "events", "http", "infra", "migrations", "projections"}, anyOther: true},

	// The program: cli holds the nouns, node the wiring. Only node and doctor reach infra, except for the list
	// of the dangers that a setting allows, and the sender of webhooks, which a developer's machine runs.
	"sdk":                  {},                                     // runs the tests of the SDKs
	"examples":             {},                                     // clients of the HTTP API: the standard library only
	"sdk/conformance":      {ours: []string{"internal/localtest"}}, // for tests only: a client of the HTTP API and of the SDKs' programs
	"cmd/meterplex":        {ours: []string{"cmd/meterplex/cli"}, others: []string{"github.com/google/uuid"}},
	"cmd/meterplex/output": {ours: []string{"domain/csvtext"}},
	"cmd/meterplex/client": {ours: []string{"cmd/meterplex/output", "domain/codes"}},
	"cmd/meterplex/config": {ours: []string{"events", "infra", "infra/postgres"}, others: []string{"github.com/alecthomas/kong"}},
	"cmd/meterplex/importer": {ours: []string{"cmd/meterplex/client", "cmd/meterplex/output"},
		others: []string{"github.com/schollz/progressbar", "golang.org/x/sync"}},
	"cmd/meterplex/node": {ours: []string{"cmd/meterplex/config", "commands", "commands/metering", "commands/catalogue", "commands/billing",
		"commands/webhooks", "commands/repair", "commands/offboarding",
		"domain", "domain/webhook", "domain/retries", "domain/loop", "events", "http", "http/api", "http/auth", "http/console", "http/edge",
		"infra", "infra/webhook", "infra/local", "infra/local/localkafka", "infra/postgres",
		"infra/postgres/eventlog", "infra/postgres/eventlog/recent", "infra/postgres/store", "infra/postgres/store/closes",
		"infra/postgres/store/offboardings", "infra/postgres/store/pushes", "infra/postgres/store/repairs", "projections",
		"projections/query",
		"projections/consume", "projections/rebuild", "projections/validate", "projections/periods", "projections/query",
		"projections/entitlements", "projections/models", "projections/overview", "projections/state"}, anyOther: true},
	"cmd/meterplex/demo": {ours: []string{"cmd/meterplex/client", "cmd/meterplex/config", "cmd/meterplex/importer", "cmd/meterplex/node",
		"cmd/meterplex/output", "events", "internal/stripetest"}},
	"cmd/meterplex/tour": {ours: []string{"cmd/meterplex/client", "cmd/meterplex/config", "cmd/meterplex/demo", "cmd/meterplex/node",
		"events", "projections", "projections/usage"}},
	"verify": {}, // a module of its own that imports nothing of the service
	"cmd/meterplex/doctor": {ours: []string{"events", "projections/state", "infra", "infra/postgres"},
		others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}},
	"cmd/meterplex/cli/app": {ours: []string{"cmd/meterplex/client", "cmd/meterplex/config", "cmd/meterplex/output"},
		others: []string{"github.com/alecthomas/kong"}},
	"cmd/meterplex/cli/tenants":      nouns("domain/webhook", "infra/webhook"),
	"cmd/meterplex/cli/catalogue":    nouns("cmd/meterplex/cli/billing"),
	"cmd/meterplex/cli/usage":        nouns("cmd/meterplex/cli/events", "cmd/meterplex/importer", "events", "projections/series"),
	"cmd/meterplex/cli/events":       nouns("events", "projections/audit"),
	"cmd/meterplex/cli/entitlements": nouns(),
	"cmd/meterplex/cli/billing":      nouns(),
	"cmd/meterplex/cli/repair":       nouns("projections/models"),
	"cmd/meterplex/cli/operate": nouns("cmd/meterplex/cli/repair", "cmd/meterplex/demo", "cmd/meterplex/doctor", "cmd/meterplex/node",
		"verify",
		"projections/overview", "projections/state"),
	"cmd/meterplex/cli": {ours: []string{"cmd/meterplex/cli/app", "cmd/meterplex/cli/tenants", "cmd/meterplex/cli/catalogue",
		"cmd/meterplex/cli/usage", "cmd/meterplex/cli/events",
		"cmd/meterplex/cli/entitlements", "cmd/meterplex/cli/billing", "cmd/meterplex/cli/repair", "cmd/meterplex/cli/operate",
		"cmd/meterplex/config", "cmd/meterplex/node",
		"cmd/meterplex/tour", "commands", "domain"}, others: []string{"github.com/alecthomas/kong"}},
}

// handlers returns the layer of the handlers of a subject.
func handlers(ours ...string) layer {
	return layer{ours: append(ours, "http/api", "http/auth", "http/edge", "http/problem", "commands", "domain", "events",
		"projections/query"),
		others: []string{"github.com/google/uuid", "github.com/danielgtaylor/huma"}}
}

// nouns returns the layer of the commands of a subject.
func nouns(ours ...string) layer {
	return layer{ours: append(ours, "cmd/meterplex/cli/app", "cmd/meterplex/client", "cmd/meterplex/config", "cmd/meterplex/output"),
		others: []string{"github.com/schollz/progressbar"}}
}

// pages returns the layer of the console's pages of a subject.
func pages(ours ...string) layer {
	return layer{ours: append(ours, "http/console", "http/auth", "http/problem")}
}

// subject returns the layer of a package below commands/.
func subject(ours ...string) layer {
	return layer{ours: append(ours, "commands", "events", "domain", "domain/intake", "domain/push", "domain/webhook", "domain/retries",
		"domain/strictjson", "domain/loop"), others: []string{"github.com/google/uuid"}}
}

// projection returns the layer of a package below projections/.
func projection(ours ...string) layer {
	return layer{ours: append(ours, "events", "domain"), others: []string{"github.com/google/uuid", "github.com/jackc/pgx/v5"}}
}

// layerOf returns the folder whose row applies to a package.
func layerOf(path string) (folder string) {
	for name := range layers {
		if (path == name || strings.HasPrefix(path, name+"/")) && len(name) > len(folder) {
			folder = name
		}
	}
	return folder
}

func TestImportsPointDown(t *testing.T) {
	for _, pkg := range listPackages(t) {
		path, imports := pkg[0], pkg[1:]
		if path+"/" == module {
			continue
		}
		folder := layerOf(strings.TrimPrefix(path, module))
		rule := layers[folder]
		if folder == "" {
			t.Errorf("%s: no row places the folder", path)
		}
		for _, imported := range imports {
			if ours, found := strings.CutPrefix(imported, module); found {
				top, _, _ := strings.Cut(ours, "/")
				exact := strings.Contains(folder, "/") || folder == "projections"
				if exact && !slices.Contains(rule.ours, layerOf(ours)) || !exact && !slices.Contains(rule.ours, top) && top != folder {
					t.Errorf("%s may not import %s", path, imported)
				}
			} else if first, _, _ := strings.Cut(imported, "/"); strings.Contains(first, ".") && !rule.anyOther &&
				!hasPrefix(rule.others, imported) {
				t.Errorf("%s may not import %s", path, imported)
			}
		}
	}
}

func hasPrefix(allowed []string, path string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool { return path == a || strings.HasPrefix(path, a+"/") })
}

// listPackages returns each package with the imports of its code, not of its tests.
func listPackages(t *testing.T) [][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "./...").Output()
	must.OK(t, err)
	var all [][]string
	for line := range strings.Lines(string(out)) {
		all = append(all, strings.Fields(line))
	}
	if len(all) < 8 {
		t.Fatalf("only %d packages are listed", len(all))
	}
	return all
}

// Every package with tests whose code starts goroutines checks for leaked ones in its TestMain.
func TestEveryPackageChecksForLeaks(t *testing.T) {
	var tested []string
	checks, starts := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasPrefix(path, "deploy/check") ||
			strings.HasPrefix(path, "sdk/go") {
			return err // modules of their own
		}
		text, err := os.ReadFile(path)
		folder := filepath.Dir(path)
		if strings.HasSuffix(path, "_test.go") {
			tested = append(tested, folder)
		}
		checks[folder] = checks[folder] || leakChecks.Match(text)
		starts[folder] = starts[folder] || goroutines.Match(text)
		return err
	})
	if tested = slices.Compact(tested); err != nil || len(tested) < 15 {
		t.Fatalf("%d packages with tests: %v", len(tested), err)
	}
	for _, folder := range tested {
		if starts[folder] && !checks[folder] {
			t.Errorf("%s starts goroutines and has tests, and no TestMain that ends with localtest.NoLeaks or goleak", folder)
		}
	}
}

var (
	leakChecks = regexp.MustCompile(`goleak\.(VerifyTestMain|Find)\(|localtest\.NoLeaks\(`)
	goroutines = regexp.MustCompile(`(?m)^\s*go \w|\.Go\(|httptest\.New\w*Server|localtest\.(Main|Postgres|Database)`)
)
