package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrFull is the error of an append for which the disk has no space. ErrLost says that the queue belongs to another client now.
var (
	ErrFull = errors.New("the disk is full")
	ErrLost = errors.New("the queue was taken over by another client")
)

// Damage is a range of bytes that holds no records. It is kept in damaged/.
type Damage struct {
	Segment int   `json:"segment"`
	Offset  int64 `json:"offset"`
	Bytes   int   `json:"bytes"` // 0: the segment is missing
	Detail  string
}

// Dir is the directory of an application. Its queues belong to clients.
type Dir struct {
	Path   string
	Tenant string // the queues of others are left alone
	Fsync  bool   // wait for the disk after each append
	// OnDamage is called for damage that a reader finds, before it goes on behind it.
	OnDamage func(Damage)
}

// File is a queue q-<token>. One goroutine appends, one reads and settles.
type File struct {
	dir   *Dir
	token string
	path  string
	made  atomic.Bool // its folder
	lost  atomic.Bool

	// Of the goroutine that appends.
	file   *os.File
	number int // of the segment that is written
	offset int64

	// Of the goroutine that reads.
	buf   []byte // bytes of a segment
	bufAt position
	ends  []position // behind each event of the last Read

	mu      sync.Mutex
	cursor  position // all before it is settled; changed by the reader
	end     position // behind the last durable record
	events  int
	bytes   int64
	settled int64 // events, since it was opened

	damaged bool // it was taken over with damage that may not be read yet
}

type position struct {
	Segment int   `json:"segment"`
	Offset  int64 `json:"offset"`
}

// Append stores the first of the events, as many as fit into the segment, and returns their number once they are durable.
// After an error other than ErrFull the queue must not be appended to again.
func (q *File) Append(events [][]byte) (n int, err error) {
	if !q.made.Load() {
		if err := q.make(); err != nil {
			return 0, q.failure(err)
		}
	}
	if q.file == nil || q.offset >= segmentSize {
		if err := q.beginSegment(); err != nil {
			return 0, q.failure(err)
		}
	}
	var buf []byte
	for n < len(events) && q.offset+int64(len(buf)) < segmentSize {
		buf = appendRecord(buf, events[n])
		n++
	}
	if err := q.write(buf); err != nil {
		return 0, q.failure(err)
	}
	if err := q.checkOwner(); err != nil {
		return 0, q.failure(err)
	}
	q.offset += int64(len(buf))
	q.mu.Lock()
	defer q.mu.Unlock()
	q.end = position{q.number, q.offset}
	q.events += n
	q.bytes += int64(len(buf))
	return n, nil
}

// write appends bytes and waits until they are durable. After a failure the segment ends where it ended before.
func (q *File) write(buf []byte) error {
	_, err := q.file.WriteAt(buf, q.offset)
	if err == nil && q.dir.Fsync {
		err = q.file.Sync()
	}
	if err == nil {
		return nil
	}
	if cut := q.file.Truncate(q.offset); cut != nil {
		return fmt.Errorf("%v; the rest of the write cannot be cut off: %w", err, cut)
	}
	return err
}

// beginSegment makes the next segment.
func (q *File) beginSegment() error {
	path := segmentPath(q.path, q.number+1)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.WriteString(magic); err == nil && q.dir.Fsync {
		if err = f.Sync(); err == nil {
			err = syncDir(q.path)
		}
	}
	if err != nil {
		_ = f.Close()
		_ = os.Remove(path)
		return err
	}
	q.closeFile()
	q.file, q.number, q.offset = f, q.number+1, int64(len(magic))
	return nil
}

// checkOwner returns ErrLost if the queue was taken over, e.g. while this process was frozen.
func (q *File) checkOwner() error {
	o, err := readOwner(q.path)
	if err == nil && o.Token != q.token {
		return ErrLost
	}
	return err
}

// failure maps the errors of files.
func (q *File) failure(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrLost):
		q.lost.Store(true)
		return ErrLost
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return ErrFull
	}
	return err
}

// Lost reports whether another client has taken the queue over.
func (q *File) Lost() bool { return q.lost.Load() }

// Size returns the number and the bytes of the events that are not settled; those of a lost queue are another client's.
func (q *File) Size() (events int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.Lost() {
		return 0, 0
	}
	return q.events, q.bytes
}

// Settled returns how many events were settled.
func (q *File) Settled() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.settled
}

// Renew shows other clients that the owner lives.
func (q *File) Renew() {
	if !q.made.Load() {
		return
	}
	if err := renewed(q.path, time.Now()); errors.Is(err, fs.ErrNotExist) {
		q.lost.Store(true)
	}
}

// Close gives the queue up: an empty one is removed, another is for the next client to take over. Nothing may use the queue then.
func (q *File) Close() {
	q.closeFile()
	switch events, _ := q.Size(); {
	case q.Lost() || !q.made.Load():
	case events == 0 && !q.damaged: // damage that no Read has moved away is for the next client
		unnamed := filepath.Join(q.dir.Path, "tmp-"+q.token) // no client sees a part of it
		if os.Rename(q.path, unnamed) == nil {
			_ = os.RemoveAll(unnamed)
		}
	default:
		_ = renewed(q.path, time.Now().Add(-2*goneAfter)) // dead, and still the tenant's
	}
	live.Delete(q.token)
}

func (q *File) closeFile() {
	if q.file != nil {
		_ = q.file.Close()
		q.file = nil
	}
}

func segmentPath(dir string, number int) string {
	return filepath.Join(dir, fmt.Sprintf("%08d.seg", number))
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, fs.ErrInvalid) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EBADF) {
		return err // some file systems cannot sync a directory
	}
	return nil
}

// writeFile replaces a file: readers see the old content or the new one.
func writeFile(path string, content []byte, durable bool) error {
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && durable {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil && durable {
		err = syncDir(filepath.Dir(path))
	}
	return err
}

func writeJSON(path string, content any, durable bool) error {
	b, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return writeFile(path, b, durable)
}
