package queue

import (
	"bytes"
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

// Queues are taken over if their client is dead, and left alone otherwise.
func TestTakeOver(t *testing.T) {
	host, err := os.Hostname()
	must(t, err)
	past := time.Now().Add(-2 * goneAfter)
	own := owner{Version: 1, Token: "00000000000000aa", PID: os.Getpid(), Host: host}
	for name, c := range map[string]struct {
		change func(*owner)
		set    func(path string) error // changes the file owner
		tenant string                  // of the client
		left   bool
	}{
		"own process without the client": {},
		"no process":                     {change: func(o *owner) { o.PID = 1 << 22 }},
		"another process":                {change: func(o *owner) { o.PID = os.Getppid() }, left: true},
		"another host":                   {change: func(o *owner) { o.Host = "x" }, left: true},
		"another host, not renewed": {change: func(o *owner) { o.Host = "x" }, set: func(p string) error {
			return os.Chtimes(p, past, past)
		}},
		"a process, not renewed": {change: func(o *owner) { o.PID = os.Getppid() }, set: func(p string) error {
			return os.Chtimes(p, past, past)
		}},
		"no owner":                      {set: os.Remove},
		"an owner that is cut":          {set: func(p string) error { return os.WriteFile(p, []byte("{"), 0o600) }},
		"another tenant":                {change: func(o *owner) { o.Tenant = "b" }, tenant: "a", left: true},
		"a tenant, the client has none": {change: func(o *owner) { o.Tenant = "b" }, left: true},
		"the tenant":                    {change: func(o *owner) { o.Tenant = "a" }, tenant: "a"},
		"no tenant":                     {tenant: "a"},
	} {
		dir, _ := newDir(t, copyQueues(t, "plain"))
		dir.Tenant = c.tenant
		path, o := filepath.Join(dir.Path, "q-00000000000000aa"), own
		if c.change != nil {
			c.change(&o)
		}
		must(t, writeJSON(filepath.Join(path, "owner"), o, false))
		if c.set != nil {
			must(t, c.set(filepath.Join(path, "owner")))
		}
		taken, err := dir.TakeOver()
		must(t, err)
		if (len(taken) == 0) != c.left {
			t.Errorf("%s: %d are taken over", name, len(taken))
		}
		for _, q := range taken {
			if n, _ := q.Size(); n != 4 || q.checkOwner() != nil {
				t.Errorf("%s: %d events, %v", name, n, q.checkOwner())
			}
			q.Close()
		}
	}
}

// What is closed with events is dead at once and keeps its tenant; segments roll, and those before the cursor are deleted.
func TestSegmentsRoll(t *testing.T) {
	dir, found := newDir(t, t.TempDir())
	dir.Tenant = "a"
	q, err := dir.New()
	must(t, err)
	event := []byte(`{"eventId":"` + string(bytes.Repeat([]byte("x"), 60_000)) + `"}`)
	for range 200 {
		if n, err := q.Append([][]byte{event}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	all, err := segments(q.path)
	must(t, err)
	for _, number := range all {
		info, err := os.Stat(segmentPath(q.path, number))
		must(t, err)
		if most := int64(segmentSize + headSize + len(event)); info.Size() > most {
			t.Errorf("segment %d has %d bytes", number, info.Size())
		}
	}
	if len(all) != 3 {
		t.Errorf("segments %v", all)
	}
	q.Close()
	other, _ := newDir(t, dir.Path)
	other.Tenant = "b"
	if taken, err := other.TakeOver(); err != nil || len(taken) != 0 {
		t.Errorf("another tenant has taken %d queues over: %v", len(taken), err)
	}
	taken, err := dir.TakeOver()
	must(t, err)
	events, err := taken[0].Read(150, 1<<30)
	must(t, err)
	taken[0].Settle(events)
	if all, _ := segments(taken[0].path); len(events) != 150 || len(all) != 1 || all[0] != 3 {
		t.Errorf("%d events, segments %v", len(events), all)
	}
	if ids := drain(t, taken, 7); len(ids) != 50 || len(*found) != 0 {
		t.Errorf("%d events, %v", len(ids), *found)
	}
}

// A queue that another client has renamed is lost: nothing is confirmed any more.
func TestALostQueueConfirmsNothing(t *testing.T) {
	dir, _ := newDir(t, t.TempDir())
	q, err := dir.New()
	must(t, err)
	_, err = q.Append([][]byte{[]byte(`{}`)})
	must(t, err)
	must(t, os.Rename(q.path, filepath.Join(dir.Path, "q-1111111111111111")))
	if n, err := q.Append([][]byte{[]byte(`{}`)}); n != 0 || err != ErrLost || !q.Lost() {
		t.Error(n, err)
	}
	if n, _ := q.Size(); n != 0 {
		t.Errorf("%d events", n)
	}
}

// Damage that no Read has moved away is not removed with its queue.
func TestUnreadDamageIsKept(t *testing.T) {
	dir, found := newDir(t, copyQueues(t, "plain"))
	path := filepath.Join(dir.Path, "q-00000000000000aa")
	must(t, os.Remove(segmentPath(path, 2)))
	segment, err := os.ReadFile(segmentPath(path, 1))
	must(t, err)
	for i := len(magic) + headSize; i < len(segment); i += 90 {
		segment[i] ^= 1 // of each event
	}
	must(t, os.WriteFile(segmentPath(path, 1), segment, 0o600))
	taken, err := dir.TakeOver()
	must(t, err)
	if n, _ := taken[0].Size(); n != 0 || len(taken) != 1 {
		t.Fatal(n, taken)
	}
	taken[0].Close()
	taken, err = dir.TakeOver()
	must(t, err)
	if ids := drain(t, taken, 10); len(ids) != 0 || len(*found) != 1 {
		t.Errorf("%v %v", ids, *found)
	}
}

// The owner of a queue is durable before its first event is.
func TestAQueueIsMadeOnce(t *testing.T) {
	dir, _ := newDir(t, filepath.Join(t.TempDir(), "a", "b"))
	q, err := dir.New()
	must(t, err)
	must(t, q.checkOwner())
	later := dir.queue() // as if the disk had been full
	later.Renew()
	if _, err := os.Stat(later.path); err == nil || later.Lost() {
		t.Error(err, later.Lost())
	}
	if n, err := later.Append([][]byte{[]byte(`{}`)}); n != 1 || err != nil || later.checkOwner() != nil {
		t.Error(n, err, later.checkOwner())
	}
	must(t, dir.ownInPlace(later.path, "x"))
	if o, err := readOwner(later.path); err != nil || o.Token != "x" {
		t.Errorf("%+v %v", o, err)
	}
}

// An append waits for the disk, unless the application does not want it: fsync of /dev/null fails.
func TestAnAppendWaitsForTheDisk(t *testing.T) {
	for _, fsync := range []bool{true, false} {
		dir, _ := newDir(t, t.TempDir())
		dir.Fsync = fsync
		q, err := dir.New()
		must(t, err)
		_, err = q.Append([][]byte{[]byte(`{}`)})
		must(t, err)
		q.closeFile()
		q.file, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
		must(t, err)
		if n, err := q.Append([][]byte{[]byte(`{}`)}); (err == nil) == fsync {
			t.Errorf("fsync %t: %d %v", fsync, n, err)
		}
	}
}
