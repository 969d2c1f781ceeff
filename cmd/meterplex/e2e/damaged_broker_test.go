package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// An embedded Kafka whose data directory is damaged ends the start with the cause and the remedy, or it starts and the
// service restores the records that are lost. After the remedy the service starts again, and no event is lost.
func TestP11_DamagedKafkaDataNamesCauseAndRemedy(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the shared broker is not used: each instance starts its own
	dir := t.TempDir()
	i := w.prepare("", "METERPLEX_PIPE=kafka", "METERPLEX_DATA_DIR="+dir, "HOME="+os.Getenv("HOME")) // the home has the broker's program
	broker := filepath.Join(dir, "kafka")
	i.start()
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	w.ingest(i, x, "accepted", events("e", 200, "api_calls")...)
	w.drain()
	i.stop()
	meta := filepath.Join(broker, "data", "meta.properties")
	whole, err := os.ReadFile(meta)
	must.OK(t, err)
	d := &damagedBroker{i, broker}
	d.write(meta, []byte("\x00\xff\x17 no properties"))
	d.ends("garbage in meta.properties", meta+" names no node.id and cluster.id")
	must.OK(t, os.Remove(meta))
	d.ends("no meta.properties", "there is no "+meta)
	d.write(meta, whole)

	// The broker removes the unreadable part of its logs; the service restores the lost records from its own log.
	for _, name := range d.segments("*usage.*-*") {
		info, err := os.Stat(name)
		must.OK(t, err)
		must.OK(t, os.Truncate(name, info.Size()/2))
	}
	for _, name := range d.segments("__cluster_metadata-0") {
		d.write(name, []byte(strings.Repeat("garbage", 10000)))
	}
	i.start()
	w.ingest(i, x, "accepted", events("after-the-cut", 100, "api_calls")...)
	w.drain()
	i.stop()

	d.write(meta, []byte(strings.Replace(string(whole), "node.id=1", "node.id=99", 1)))
	d.ends("meta.properties of another broker", "the broker exited during its start", "99")
	if err := os.Rename(broker, broker+".damaged"); err != nil { // the remedy
		t.Fatal(err)
	}
	i.start()
	w.ingest(i, x, "accepted", events("after-the-remedy", 100, "api_calls")...)
	w.finish()
}

// damagedBroker is an instance with an embedded Kafka in a directory.
type damagedBroker struct {
	*instance
	dir string
}

func (d *damagedBroker) segments(of string) (names []string) {
	d.t.Helper()
	names, err := filepath.Glob(filepath.Join(d.dir, "data", of, "*.log"))
	if err != nil || len(names) == 0 {
		d.t.Fatal(of, names, err)
	}
	return names
}

func (d *damagedBroker) write(name string, content []byte) {
	d.t.Helper()
	must.OK(d.t, os.WriteFile(name, content, 0o644))
}

// ends starts the service, and checks that the start ends with the causes and the remedy.
func (d *damagedBroker) ends(damage string, causes ...string) {
	d.t.Helper()
	before := d.lineCount()
	if d.tryStart() == nil {
		d.stop()
		d.t.Errorf("%s: the service started", damage)
		return
	}
	said := d.lastLines(d.lineCount() - before)
	for _, part := range append(causes, filepath.Join(d.dir, "kafka.log"), "move "+d.dir+" away and start again", "no event is lost", "docs/runbooks/kafka-data-lost.md") {
		if !strings.Contains(said, part) {
			d.t.Errorf("%s: the message lacks %q:\n%s", damage, part, said)
		}
	}
}
