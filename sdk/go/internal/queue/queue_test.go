package queue

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

const testdata = "../../../testdata"

// newDir returns a directory whose damage is collected.
func newDir(t *testing.T, path string) (*Dir, *[]Damage) {
	t.Helper()
	var found []Damage
	return &Dir{Path: path, Fsync: true, OnDamage: func(d Damage) { found = append(found, d) }}, &found
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// drain reads and settles all events of queues, and returns their ids.
func drain(t *testing.T, queues []*File, most int) (ids []string) {
	t.Helper()
	ids = []string{}
	for _, q := range queues {
		for {
			events, err := q.Read(most, 1<<20)
			must(t, err)
			if len(events) == 0 {
				break
			}
			for _, e := range events {
				var event struct{ EventID string }
				must(t, json.Unmarshal(e, &event))
				ids = append(ids, event.EventID)
			}
			q.Settle(events)
		}
		if n, bytes := q.Size(); n != 0 || bytes != 0 {
			t.Errorf("%d events with %d bytes remain", n, bytes)
		}
		q.Close()
	}
	return ids
}

func copyQueues(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join(testdata, "queues", name))))
	kill(t, filepath.Join(dir, "q-00000000000000aa"))
	return dir
}

// kill makes a queue of another host look dead.
func kill(t *testing.T, path string) {
	t.Helper()
	past := time.Now().Add(-2 * goneAfter)
	must(t, os.Chtimes(filepath.Join(path, "owner"), past, past))
}

// The golden queues, which the SDKs share, are emptied; damage is reported and kept.
func TestGoldenQueuesAreEmptied(t *testing.T) {
	type damage struct {
		Segment int
		Offset  int64
		Bytes   int
	}
	var golden map[string]struct {
		Events  []string
		Damaged []damage
	}
	text, err := os.ReadFile(filepath.Join(testdata, "queues.json"))
	must(t, err)
	must(t, json.Unmarshal(text, &golden))
	if len(golden) < 16 {
		t.Fatalf("%d golden queues", len(golden))
	}
	for name, want := range golden {
		for _, most := range []int{1, 1000} {
			dir, found := newDir(t, copyQueues(t, name))
			taken, err := dir.TakeOver()
			must(t, err)
			ids := drain(t, taken, most)
			damaged := []damage{}
			for _, d := range *found {
				if d.Bytes > 0 {
					damaged = append(damaged, damage{d.Segment, d.Offset, d.Bytes})
				}
			}
			kept, _ := filepath.Glob(filepath.Join(dir.Path, "damaged", "*.bin"))
			if !reflect.DeepEqual(ids, want.Events) || !reflect.DeepEqual(damaged, want.Damaged) || len(kept) != len(damaged) {
				t.Errorf("%s: %v, damaged %v, kept %v; want %v", name, ids, damaged, kept, want)
			}
			if name == "missing-segment" && len(*found) != 1 {
				t.Errorf("the missing segment is not reported")
			}
			if left, _ := filepath.Glob(filepath.Join(dir.Path, "q-*")); len(left) != 0 {
				t.Errorf("%s: %v remain", name, left)
			}
		}
	}
}
