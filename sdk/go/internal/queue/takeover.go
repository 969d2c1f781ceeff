package queue

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// RenewEvery is how often an owner renews its queues. After goneAfter without renewal the owner counts as dead.
const (
	RenewEvery = 5 * time.Second
	goneAfter  = 60 * time.Second
)

// owner is the content of the file owner.
type owner struct {
	Version int    `json:"version"`
	Token   string `json:"token"`
	PID     int    `json:"pid"`
	Host    string `json:"host"`
	Tenant  string `json:"tenant"`
}

// live holds the tokens of the queues of this process: a queue of this process without a client is dead.
var live sync.Map

// New returns a queue to append to. If the disk is full, its folder is made at the first Append that has space.
func (d *Dir) New() (*File, error) {
	if err := d.makeFolder(d.Path); err != nil {
		return nil, err
	}
	q := d.queue()
	if err := q.make(); err != nil && q.failure(err) != ErrFull {
		live.Delete(q.token)
		return nil, err
	}
	q.lost.Store(false)
	return q, nil
}

// make makes the folder of a queue. No client sees it without its owner.
func (q *File) make() error {
	unfinished := filepath.Join(q.dir.Path, "tmp-"+q.token)
	err := os.Mkdir(unfinished, 0o700)
	if err == nil {
		err = q.dir.own(unfinished, q.token)
	}
	if err == nil {
		err = os.Rename(unfinished, q.path)
	}
	if err == nil && q.dir.Fsync {
		err = syncDir(q.dir.Path)
	}
	if err != nil {
		_ = os.RemoveAll(unfinished)
		return err
	}
	q.made.Store(true)
	return nil
}

// makeFolder makes a folder and its parents durable.
func (d *Dir) makeFolder(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := d.makeFolder(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !d.Fsync {
		return nil
	}
	if err := syncDir(filepath.Dir(path)); !errors.Is(err, fs.ErrPermission) { // a folder that may be written, but not read
		return err
	}
	return nil
}

// queue returns an empty queue with a new token.
func (d *Dir) queue() *File {
	var random [8]byte
	_, _ = rand.Read(random[:])
	token := hex.EncodeToString(random[:])
	live.Store(token, true)
	first := position{1, 0}
	return &File{dir: d, token: token, path: filepath.Join(d.Path, "q-"+token), cursor: first, end: first}
}

func (d *Dir) own(path, token string) error {
	host, _ := os.Hostname()
	// Durable: a queue whose owner is lost with the machine would be every tenant's.
	return writeJSON(filepath.Join(path, "owner"), owner{Version: 1, Token: token, PID: os.Getpid(), Host: host, Tenant: d.Tenant}, d.Fsync)
}

// ownInPlace overwrites the file owner, which needs no space. A client that ends meanwhile leaves an owner that cannot be read: a dead
// queue.
func (d *Dir) ownInPlace(path, token string) error {
	f, err := os.OpenFile(filepath.Join(path, "owner"), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	host, _ := os.Hostname()
	content, err := json.Marshal(owner{Version: 1, Token: token, PID: os.Getpid(), Host: host, Tenant: d.Tenant})
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(content)))
}

func readOwner(path string) (o owner, err error) {
	b, err := os.ReadFile(filepath.Join(path, "owner"))
	if err != nil {
		return o, err
	}
	if json.Unmarshal(b, &o) != nil {
		return owner{}, nil // of nobody
	}
	return o, nil
}

// renewed sets the time at which the owner of a queue was last seen.
func renewed(path string, at time.Time) error {
	return os.Chtimes(filepath.Join(path, "owner"), at, at)
}

// TakeOver makes the queues of dead clients its own, and returns those with events, the one that died first in front.
func (d *Dir) TakeOver() (taken []*File, err error) {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return nil, err
	}
	type dead struct {
		path  string
		since time.Time
	}
	var all []dead
	for _, e := range entries {
		path := filepath.Join(d.Path, e.Name())
		if since, is := d.isDead(path); is && strings.HasPrefix(e.Name(), "q-") {
			all = append(all, dead{path, since})
		} else if is && strings.HasPrefix(e.Name(), "tmp-") && time.Since(since) > goneAfter {
			_ = os.RemoveAll(path)
		}
	}
	slices.SortFunc(all, func(a, b dead) int { return cmp.Or(a.since.Compare(b.since), strings.Compare(a.path, b.path)) })
	for _, one := range all {
		q, failed := d.take(one.path)
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) { // if it does not exist, another client has taken it
			err = failed
		} else if events := 0; failed == nil {
			if events, _ = q.Size(); events > 0 || q.hasDamage() {
				taken = append(taken, q)
			} else {
				q.Close()
			}
		}
	}
	return taken, err
}

// isDead reports whether the client of a queue has ended, and since when at most.
func (d *Dir) isDead(path string) (since time.Time, dead bool) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return since, false
	}
	o, err := readOwner(path)
	if file, failed := os.Stat(filepath.Join(path, "owner")); failed == nil {
		info = file
	}
	since = info.ModTime()
	switch {
	case err != nil:
		return since, errors.Is(err, fs.ErrNotExist)
	case o.Token == "":
		return since, true
	case o.Tenant != "" && o.Tenant != d.Tenant:
		return since, false
	case time.Since(since) > goneAfter:
		return since, true
	}
	host, _ := os.Hostname()
	return since, o.Host == host && !processLives(o)
}

func processLives(o owner) bool {
	if o.PID == os.Getpid() {
		_, lives := live.Load(o.Token)
		return lives
	}
	p, err := os.FindProcess(o.PID)
	if err != nil {
		return false
	}
	defer func() { _ = p.Release() }()
	err = p.Signal(syscall.Signal(0))
	return !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH)
}

// take makes a dead queue its own: it is renamed, a torn tail is cut off, and its events are counted.
func (d *Dir) take(path string) (*File, error) {
	q := d.queue()
	err := os.Rename(path, q.path)
	if err == nil {
		q.made.Store(true)
		err = d.own(q.path, q.token)
	}
	if err != nil && q.failure(err) == ErrFull {
		err = d.ownInPlace(q.path, q.token) // its events must leave for the disk to have space
	}
	if err == nil {
		err = q.open()
	}
	if err != nil {
		live.Delete(q.token)
		return nil, err
	}
	return q, nil
}

// open reads the cursor, cuts off a torn tail and counts the events.
func (q *File) open() error {
	all, err := segments(q.path)
	if err != nil || len(all) == 0 {
		return err
	}
	q.cursor = position{all[0], 0}
	if b, err := os.ReadFile(filepath.Join(q.path, "cursor")); err == nil {
		var at position
		if json.Unmarshal(b, &at) == nil && at.Segment >= all[0] && at.Offset >= 0 {
			q.cursor = at
		}
	}
	q.end = q.cursor
	for i, number := range all {
		if number < q.cursor.Segment {
			continue
		}
		size, err := q.count(number, i == len(all)-1)
		if err != nil {
			return err
		}
		q.end = position{number, size}
	}
	return nil
}

// count adds the events of a segment, cuts off the torn tail of the last one, and returns the size that remains.
func (q *File) count(number int, last bool) (int64, error) {
	path := segmentPath(q.path, number)
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	at := int64(0)
	for at < int64(len(b)) {
		p := parse(b[at:], at)
		if p.damaged && last && isTorn(b[at:], at == 0) {
			return at, os.Truncate(path, at)
		}
		if p.event != nil && (number > q.cursor.Segment || at >= q.cursor.Offset) {
			q.events++
			q.bytes += int64(p.size)
		}
		q.damaged = q.damaged || p.damaged
		at += int64(p.size)
	}
	return at, nil
}

func (q *File) hasDamage() bool { return q.damaged }
