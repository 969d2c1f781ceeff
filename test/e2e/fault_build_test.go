package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// faulty builds the service with kill points, an adjustable clock, and the changes of a later release. All are inactive until environment
// variables enable them: one build for each would compile most packages again.
var faulty = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(binaryDir(), "faulty")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("build the faulty service: %w", err)
	}
	description, err := writeOverlay(dir, root, faultyEdits())
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "meterplex")
	// Nearly every package of the service is compiled for this build alone, so that no time goes into fast code and debugging information.
	build := exec.Command("go", "build", "-ldflags=-s", "-gcflags=github.com/meterplex/meterplex/...=-N -l -dwarf=false",
		"-overlay", description, "-o", path, "./cmd/meterplex")
	build.Dir, build.Env = root, buildEnv()
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the faulty service: %w\n%s", err, out)
	}
	return path, nil
})

func faultyEdits() []edit {
	return slices.Concat([]edit{{File: "events/fault/fault.go", New: faultFile}},
		killPoints(), wrongClock(), nextRelease(), nextVocabulary())
}

// faultFile is a separate package, which all other packages may import.
const faultFile = `// Package fault exists only in builds of the tests.
package fault

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

var hits atomic.Int64

// Die kills the process at the n-th pass of an armed kill point. The file holds "point#n"; it
// is renamed first, which shows the test that the kill point was reached.
func Die(point string) {
	path := os.Getenv("METERPLEX_FAULT_ARM")
	if path == "" {
		return
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return
	}
	armed, n, _ := strings.Cut(string(raw), "#")
	if armed != point {
		return
	}
	if wanted, _ := strconv.ParseInt(n, 10, 64); hits.Add(1) < wanted {
		return
	}
	if os.Rename(path, path+".reached") == nil {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	select {}
}

// Now is an adjustable clock.
func Now() time.Time {
	wrong, _ := time.ParseDuration(os.Getenv("METERPLEX_FAULT_CLOCK"))
	return time.Now().Add(wrong)
}

// Of returns the service's own value, or the next release's if an environment variable is set.
func Of[T any](variable string, own, next T) T {
	if os.Getenv(variable) != "" {
		return next
	}
	return own
}
`

// killPoint is a call to insert before a text in a file.
type killPoint struct{ file, at, call string }

// killPoints returns the edits for all kill points. If a call must come before another call, its edit uses a
// text of its own, in front of the other's.
func killPoints() (edits []edit) {
	const writer, finish, store = "infra/postgres/eventlog/writer.go", "infra/postgres/eventlog/server/finish.go",
		"infra/postgres/store/store.go"
	const sagas, pushes, webhooks = "infra/postgres/store/sagas.go", "commands/billing/push_saga.go", "commands/webhooks/deliver.go"
	const relay, replay = "infra/relay/carry.go", "infra/relay/replay.go"
	const runner, rebuild, rebuilt = "projections/consume/runner.go", "projections/rebuild/rebuilder.go", "projections/rebuild/clean.go"
	const of = `fault.Die(map[bool]string{true: "large", false: "small"}[rows.Len() >= 500] + `
	files := map[string]bool{}
	for _, d := range []killPoint{
		{writer, "\tconn, err := w.log.db.Session(ctx)\n",
			`fault.Die(map[bool]string{true: "small", false: "large"}[w.shared] + ": before the transaction")`},
		{writer, "\tg.sent = true\n", `fault.Die(map[bool]string{true: "small", false: "large"}[w.shared] + ": heads locked")`},
		{writer, "\tif err := g.decide(ctx, conn, hs, origin, quotas, named, probing); err != nil {\n",
			`if len(checkpoints) > 0 { fault.Die("inline: checkpoints locked") }`},
		{"infra/postgres/eventlog/inline.go", "\tg.inlined, g.unreported = in, in\n", `fault.Die("inline: follow-ups placed")`},
		{writer, "\t\t\tg.answer(nil)\n\t\t\tif inMemory {\n",
			`if len(g.inlined.stretches) > 0 { fault.Die("inline: in memory, not answered") }`},
		{finish, "\t\tto.SendBind(&rest[i])\n", `if i == len(rest)-1 && to.Flush() == nil {
		if strings.Contains(fmt.Sprint(rest), "move_checkpoints") {
			fault.Die("inline: before COMMIT")
		}
		` + of + `": before COMMIT") }`},
		{finish, "\t_ = server.Conn().SetDeadline(time.Time{})\n",
			`if err == nil && strings.Contains(fmt.Sprint(moves), "move_checkpoints") {
			fault.Die("inline: after COMMIT")
		}
	if err == nil { ` + of + `": after COMMIT") }`},
		{store, "\t\treturn tx.tx.Flush(ctx)\n", `if err := tx.tx.Flush(ctx); err != nil { return err }
	for i := range tx.appended { fault.Die(fmt.Sprint("change ", tx.appended[i].Subject, ": before COMMIT")) }`},
		{store, "\tif (err == nil || unanswered) && len(tx.concerned) > 0 {\n",
			`if err == nil { for i := range tx.appended { fault.Die(fmt.Sprint("change ", tx.appended[i].Subject, ": after COMMIT")) } }`},
		{store, "\tpositions, err := t.log.Append(t.ctx, t.tx, list)\n",
			`for i := range list { fault.Die(fmt.Sprint("change ", list[i].Subject, ": before the append")) }`},
		{sagas, "\t\tif _, err := tx.Exec(ctx, settleSagaSQL,",
			`fault.Die("saga " + v.Kind + ", " + v.State + ": before its row is saved")`},
		{sagas, "\treturn settled, nil\n",
			`if settled != nil { fault.Die("saga " + settled.Kind + ", " + settled.State + ": its row is saved") }`},
		{pushes, "\t\t\tif err := tx.AddPush(p); err != nil {\n", `fault.Die("push: before it is stored")`},
		{pushes, "\tif err != nil || billed {\n", `if err == nil { fault.Die("push: stored") }`},
		{pushes, "\tresult = c.Provider.Send(calling, *p, of)\n", `fault.Die("push: its attempt is stored")`},
		{pushes, "\tif c.Observed != nil {\n", `fault.Die("push: sent")`},
		{webhooks, "\tslow := time.AfterFunc(", `fault.Die("webhook: before it is sent")`},
		{webhooks, "\tslow.Stop()\n", `fault.Die("webhook: sent")`},
		{webhooks, "\tif err != nil || !held {\n", `fault.Die("webhook: recorded")`},
		{relay, "\t\tvalues, msg := b.message(ctx)\n", `fault.Die("relay: before it publishes")`},
		{relay, "\t\t\ts.settle(ctx, b)\n", `fault.Die("relay: between the broker's ack and the cursor")`},
		{relay, "\tfor i := range b.segments {\n\t\tp := &b.segments[i]\n\t\tif lost[p.partition] {\n",
			`fault.Die("relay: after the cursor")`},
		{replay, "\t\theld, err := r.moveCursor(ctx, u, end, sent)\n", `fault.Die("replay: between the broker's ack and the cursor")`},
		{runner, "\tif err := commit(ctx, tx); err != nil {\n",
			`fault.Die(r.Consumer.Name + map[bool]string{true: ", from memory"}[done.FromLog == 0] + ": before COMMIT")`},
		{runner, "\tr.committed(runs, done, all.appended)\n",
			`fault.Die(r.Consumer.Name + map[bool]string{true: ", from memory"}[done.FromLog == 0] + ": between COMMIT and ack")`},
		{rebuild, "\t\tif err := consume.MoveCheckpoint(ctx,",
			`fault.Die(map[bool]string{true: "rebuild: the last chunk, before COMMIT", false: "rebuild: a chunk, before COMMIT"}[joined])`},
		{rebuild, "\tif u.failure != nil {\n\t\treturn did, nil\n\t}\n\treturn did, err\n",
			`if err == nil && did { fault.Die("rebuild: a chunk, after COMMIT") }`},
		{rebuilt, "\t\tvar state string\n", `if ready { fault.Die("rebuild: ready, before COMMIT") }`},
		{rebuilt, "\tif err == nil && ready {\n", `if err == nil && ready { fault.Die("rebuild: ready, after COMMIT") }`},
		{"infra/watermill/rewind.go", "\t\tif err := s.Rewinds.Done(ctx, r, steps, failure); err != nil && ctx.Err() == nil {\n",
			`fault.Die("rewind: offsets moved, not recorded")`},
		{"commands/metering/usage_commands.go", "\treturn errors.Join(errs...)\n}\n\n// tenantMessages",
			`if errors.Join(errs...) == nil { fault.Die("usage.commands: between COMMIT and ack") }`},
		{"commands/metering/usage_commands.go", "\t\tif err := c.store(ctx, by, class, entries[:n], barred); err != nil {\n",
			`fault.Die("usage.commands: before the transaction")`},
		{"http/usage/ingest.go", "\tw.WriteHeader(status)\n\t_, _ = w.Write(body) // a client",
			`fault.Die("ingest: before the answer")`},
		{"http/entitlements/consume.go", "\tw.WriteHeader(status)\n\t_, _ = w.Write(body) // a client",
			`fault.Die("limits: before the answer")`},
	} {
		if !files[d.file] {
			files[d.file] = true
			beside := "\t\"context\"\n"
			if d.file == "http/usage/ingest.go" {
				beside = "\t\"strconv\"\n"
			}
			edits = append(edits, edit{File: d.file, Old: beside, New: beside + "\t\"github.com/meterplex/meterplex/events/fault\"\n"})
		}
		edits = append(edits, edit{File: d.file, Old: d.at, New: d.call + "\n" + d.at})
	}
	const piece = "\t\tif err := to.SendUnbufferedEncodedCopyData(piece); err != nil || rows.done {\n"
	return append(edits, edit{File: finish, Old: piece,
		New: "\t\terr := to.SendUnbufferedEncodedCopyData(piece)\n" +
			"\t\tif err == nil && !rows.done { fault.Die(\"large: between two pieces of the COPY\") }\n\t\tif err != nil || rows.done {\n"})
}

// wrongClock replaces time.Now by fault.Now in the wiring, the ids and the records' timestamps.
func wrongClock() (edits []edit) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "cmd", "meterplex", "node", "*.go"))
	for _, file := range files {
		raw, err := os.ReadFile(file)
		text := string(raw)
		if err != nil || strings.HasSuffix(file, "_test.go") || !strings.Contains(text, "time.Now") {
			continue
		}
		changed := strings.ReplaceAll(text, "time.Now", "fault.Now")
		changed = strings.Replace(changed, "import (", "import (\n\t\"github.com/meterplex/meterplex/events/fault\"\n", 1) +
			"\nvar _ time.Duration\n"
		edits = append(edits, edit{File: "cmd/meterplex/node/" + filepath.Base(file), Old: text, New: changed})
	}
	const record = "\t\tbacking[i] = kgo.Record{\n"
	return append(edits,
		edit{File: "infra/kafka/publisher.go", Old: record, New: record + "\t\t\tTimestamp: fault.Now(),\n"},
		edit{File: "infra/kafka/publisher.go", Old: "import (\n", New: "import (\n\t\"github.com/meterplex/meterplex/events/fault\"\n"})
}
