package conformance

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func segmentsOf(queue string) []string {
	list, _ := filepath.Glob(filepath.Join(queue, "*.seg"))
	slices.Sort(list)
	return list
}

func queueCases() []Case {
	return []Case{
		{Name: "queue-full",
			Promise:   "a full queue makes record wait until its deadline and fail with queue_full; nothing recorded is lost",
			Essential: true, run: func(x *trial) {
				x.proxy.failsAlways(refuses(503, "unavailable"))
				c := x.open(object{"queueBytes": 20_000})
				var ids []string
				for _, e := range padded("q", 60, 1000) {
					if err := c.call("record", object{"event": e, "deadlineMs": 5000}, nil); err != nil {
						break
					}
					ids = append(ids, e["eventId"].(string))
				}
				began := time.Now()
				c.refused("queue_full", "record", object{"event": padded("late", 1, 1000)[0], "deadlineMs": 300})
				if took := time.Since(began); took < 200*time.Millisecond || len(ids) < 10 || len(ids) > 25 {
					x.Errorf("%d events of a kilobyte in 20,000 bytes; record fails after %s, want 300 ms", len(ids), took)
				}
				x.proxy.failsAlways(nil)
				c.sent()
				ids = append(ids, c.record(usage("again"))...)
				c.sent()
				x.counts(ids...)
			}},
		{Name: "queue-full-waits", Promise: "record waits for space until its deadline, and succeeds when there is some",
			run: func(x *trial) {
				x.proxy.failsAlways(refuses(503, "unavailable"))
				c := x.open(object{"queueBytes": 5000})
				var ids []string
				var err error
				for i := 0; err == nil && i < 50; i++ {
					e := padded(string(rune('a'+i)), 1, 1000)[0]
					if err = c.call("record", object{"event": e, "deadlineMs": 100}, nil); err == nil {
						ids = append(ids, e["eventId"].(string))
					}
				}
				last := c.begin("record", object{"event": padded("last", 1, 1000)[0], "deadlineMs": patience.Milliseconds()})
				x.proxy.failsAlways(nil)
				if r := <-last; err == nil || r.err != nil {
					x.Fatalf("%v; the waiting record: %v", err, r.err)
				}
				c.sent()
				x.counts(append(ids, "last-0")...)
			}},
		{Name: "restart", Promise: "events survive kill -9 of the application", Essential: true, run: func(x *trial) {
			x.proxy.failsAlways(refuses(503, "unavailable"))
			c := x.open()
			ids := append(c.recordN("r", 40), c.record(usage("single"))...)
			c.kill()
			x.proxy.failsAlways(nil)
			c = x.open()
			c.sent()
			x.counts(ids...)
			if list := x.queues(); len(list) > 1 {
				x.Errorf("the queue of the dead process stays: %q", list)
			}
		}},
		{Name: "restart-os", Promise: "with durability os events survive kill -9 of the application", run: func(x *trial) {
			x.proxy.failsAlways(refuses(503, "unavailable"))
			c := x.open(object{"durability": "os"})
			ids := c.recordN("r", 40)
			c.kill()
			x.proxy.failsAlways(nil)
			x.open().sent()
			x.counts(ids...)
		}},
		{Name: "close-with-rest", Promise: "close ends at its deadline and says how much remains; the next client of the tenant " +
			"sends it at once", run: func(x *trial) {
			x.proxy.failsAlways(refuses(503, "unavailable"))
			c := x.open(object{"tenant": "acme"})
			ids := c.recordN("c", 12)
			var left remaining
			if c.must("close", object{"deadlineMs": 200}, &left); left.Remaining != 12 {
				x.Errorf("%+v", left)
			}
			if owner, err := os.Stat(filepath.Join(x.queue(), "owner")); err != nil || time.Since(owner.ModTime()) < time.Minute {
				x.Errorf("the owner of the queue that is left is not old: %v", err)
			}
			x.proxy.failsAlways(nil)
			x.open(object{"tenant": "globex"}).sent()
			x.counts()
			x.open(object{"tenant": "acme"}).sent() // the process of the first client still runs
			x.counts(ids...)
			c.ends()
		}},
		{Name: "ends", Promise: "a client that is not closed keeps no process alive, and loses nothing", run: func(x *trial) {
			x.proxy.failsAlways(refuses(503, "unavailable"))
			c := x.open()
			ids := c.recordN("d", 3)
			c.ends()
			x.proxy.failsAlways(nil)
			x.open().sent()
			x.counts(ids...)
		}},
		{Name: "memory", Promise: "a queue in memory makes no files, and sends", run: func(x *trial) {
			c := x.open(object{"memory": true})
			ids := c.recordN("m", 5)
			c.sent()
			x.counts(ids...)
			if list, err := os.ReadDir(x.dir); len(list) > 0 {
				x.Errorf("files: %v %v", list, err)
			}
		}},
		{Name: "modes", Promise: "directories have the mode 0700, files 0600", run: func(x *trial) {
			x.proxy.failsAlways(refusesEvents(400, "malformed_json", "unreadable"))
			c := x.open()
			c.record(usage("good"), usageOf("bad", "sdk_absent", 1), usage("unreadable"))
			c.sent()
			x.ownerOnly()
		}},
		{Name: "torn-tail", Promise: "the rest of a write that was not confirmed is cut off, and is not reported as damage",
			run: func(x *trial) {
				ids := x.written(func(text []byte) []byte { return append(text, text[8:60]...) })
				c := x.open()
				c.sent()
				x.counts(ids...)
				if files := x.filesOf("damaged"); len(files) > 0 {
					x.Errorf("damaged/ holds %q", files)
				}
			}},
		{Name: "damaged-record", Promise: "a damaged record is kept in damaged/ and reported, and the others are sent",
			run: func(x *trial) {
				ids := x.written(func(text []byte) []byte {
					text[bytes.Index(text, []byte(`"w-3"`))+1] ^= 1
					return text
				})
				c := x.open()
				c.sent()
				x.counts(slices.DeleteFunc(ids, func(id string) bool { return id == "w-3" })...)
				c.reported("damaged")
				if files := x.filesOf("damaged"); len(files) != 1 || !strings.HasSuffix(files[0], ".bin") {
					x.Errorf("damaged/ holds %q", files)
				}
			}},
		{Name: "files", Promise: "a queue of 20 MB is sent with few open files", Slow: true, run: fewFiles},
	}
}

// written records ten events without a service, kills the program, and changes the segment.
func (x *trial) written(change func(text []byte) []byte) (ids []string) {
	x.Helper()
	x.proxy.failsAlways(refuses(503, "unavailable"))
	c := x.open()
	list, _ := numbered("w", 10)
	ids = c.record(list...)
	c.kill()
	path := segmentsOf(x.queue())[0]
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(text), 0o600)
	}
	if err != nil {
		x.Fatal(err)
	}
	x.proxy.failsAlways(nil)
	return ids
}

// ownerOnly requires that only the owner of files may read them.
func (x *trial) ownerOnly() {
	x.Helper()
	seen := map[string]bool{}
	err := filepath.WalkDir(x.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		seen[filepath.Ext(path)] = true
		if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; info.Mode().Perm() != want {
			x.Errorf("%s has the mode %o", path, info.Mode().Perm())
		}
		return nil
	})
	if err != nil || !seen[".json"] || !seen[".seg"] {
		x.Errorf("%v, %v", seen, err)
	}
}

// fewFiles fills a queue, and counts the open files of the program while it is full and while it is sent.
func fewFiles(x *trial) {
	x.proxy.failsAlways(refuses(503, "unavailable"))
	c := x.open(object{"durability": "os"})
	before := openFiles(c.cmd.Process.Pid)
	list := padded("f", 500, 3900)
	var ids []string
	for n := range 10 {
		for i := range list {
			list[i]["eventId"] = fmt.Sprintf("f-%d-%d", n, i)
		}
		ids = append(ids, c.recordAll(list)...)
	}
	if files := segmentsOf(x.queue()); len(files) < 5 {
		x.Errorf("%d segments", len(files))
	}
	if now := openFiles(c.cmd.Process.Pid); before > 0 && now > before+10 {
		x.Errorf("%d files are open with a full queue, %d before", now, before)
	}
	x.proxy.failsAlways(nil)
	c.sent()
	x.counts(ids...)
}
