package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// P11: an embedded Kafka whose data directory is damaged ends the start with the cause and the remedy, or it starts and the
// service restores the records that are lost. After the remedy the service starts again, and no event is lost.
func TestP11_DamagedKafkaDataNamesCauseAndRemedy(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the shared broker is not used: each instance starts its own
	dir := localtest.Folder(t)
	i := w.prepare("", "METERPLEX_PIPE=kafka", "METERPLEX_DATA_DIR="+dir, "HOME="+os.Getenv("HOME")) // the home has the broker's program
	broker := filepath.Join(dir, "kafka")
	meta := filepath.Join(broker, "data", "meta.properties")
	write := func(name string, content string) { must.OK(t, os.WriteFile(name, []byte(content), 0o644)) }
	segments := func(of string) []string {
		names, err := filepath.Glob(filepath.Join(broker, "data", of, "*.log"))
		if err != nil || len(names) == 0 {
			t.Fatal(of, names, err)
		}
		return names
	}
	// ends checks that the start ends with the causes and the remedy.
	ends := func(damage string, causes ...string) {
		t.Helper()
		before := i.lineCount()
		if i.tryStart() == nil {
			i.stop()
			t.Errorf("%s: the service started", damage)
			return
		}
		said := i.lastLines(i.lineCount() - before)
		for _, part := range append(causes, filepath.Join(broker, "kafka.log"), "move "+broker+" away and start again", "no event is lost",
			"docs/runbooks/kafka-data-lost.md") {
			if !strings.Contains(said, part) {
				t.Errorf("%s: the message lacks %q:\n%s", damage, part, said)
			}
		}
	}
	i.start()
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	w.ingest(i, x, "accepted", events("e", 200, "api_calls")...)
	w.drain()
	i.stop()
	whole, err := os.ReadFile(meta)
	must.OK(t, err)
	write(meta, "\x00\xff\x17 no properties")
	ends("garbage in meta.properties", meta+" names no node.id and cluster.id")
	must.OK(t, os.Remove(meta))
	ends("no meta.properties", "there is no "+meta)
	write(meta, string(whole))

	// The broker removes the unreadable part of its logs; the service restores the lost records from its own log.
	for _, name := range segments("*usage.*-*") {
		info, err := os.Stat(name)
		must.OK(t, err)
		must.OK(t, os.Truncate(name, info.Size()/2))
	}
	for _, name := range segments("__cluster_metadata-0") {
		write(name, strings.Repeat("garbage", 10000))
	}
	i.start()
	w.ingest(i, x, "accepted", events("after-the-cut", 100, "api_calls")...)
	w.drain()
	i.stop()

	write(meta, strings.Replace(string(whole), "node.id=1", "node.id=99", 1))
	ends("meta.properties of another broker", "the broker exited during its start", "99")
	must.OK(t, os.Rename(broker, broker+".damaged")) // the remedy
	i.start()
	w.ingest(i, x, "accepted", events("after-the-remedy", 100, "api_calls")...)
	w.finish()
}
