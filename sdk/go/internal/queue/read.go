package queue

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Read returns the next events that are not settled, at most so many and so many bytes, but at least one if there is one. They are
// returned again until they are settled. Damaged bytes before them are moved to damaged/.
func (q *File) Read(most, mostBytes int) (events [][]byte, err error) {
	q.mu.Lock()
	at, end := q.cursor, q.end
	q.mu.Unlock()
	q.ends = q.ends[:0]
	size := 0
	for {
		b, err := q.load(at, end)
		if err != nil {
			return nil, q.failure(err)
		}
		for len(b) > 0 {
			p := parse(b, at.Offset)
			if len(events) > 0 && (p.damaged || size+len(p.event) > mostBytes) || len(events) == most {
				return events, nil
			}
			if p.damaged {
				if err := q.keepDamage(at, b[:p.size]); err != nil {
					return nil, q.failure(err)
				}
			}
			at.Offset += int64(p.size)
			b = b[p.size:]
			if p.event != nil {
				size += len(p.event)
				events = append(events, p.event)
				q.ends = append(q.ends, at)
			} else if len(events) == 0 {
				q.moveTo(at)
			}
		}
		next, err := q.segmentAfter(at.Segment, end)
		if err != nil {
			return nil, q.failure(err)
		}
		if next == 0 || len(events) > 0 && next > at.Segment+1 {
			break
		}
		if next > at.Segment+1 {
			q.reportMissing(at.Segment+1, next-1)
		}
		if at = (position{next, 0}); len(events) == 0 {
			q.moveTo(at)
		}
	}
	if len(events) == 0 {
		q.clear(end)
	}
	return events, nil
}

// load returns the bytes of a segment from a position on, up to what is durable.
func (q *File) load(at, end position) ([]byte, error) {
	f, err := os.Open(segmentPath(q.path, at.Segment))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = os.Stat(q.path); err == nil && at.Segment == end.Segment && at.Offset < end.Offset {
			q.reportMissing(at.Segment, at.Segment)
			q.moveTo(end)
		}
		return nil, err // without its folder the queue is lost
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	limit := end.Offset
	if at.Segment != end.Segment {
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		limit = info.Size()
	}
	known := at.Offset - q.bufAt.Offset
	if at.Segment != q.bufAt.Segment || known < 0 || known > int64(len(q.buf)) {
		q.buf, known = nil, 0
	}
	q.buf, q.bufAt = q.buf[known:], at // events of earlier reads keep their bytes
	if missing := limit - at.Offset - int64(len(q.buf)); missing > 0 {
		start := len(q.buf)
		q.buf = append(q.buf, make([]byte, missing)...)
		n, err := f.ReadAt(q.buf[start:], at.Offset+int64(start))
		q.buf = q.buf[:start+n]
		if err != nil && err != io.EOF {
			return nil, err
		}
	}
	b := q.buf
	if len(b) == 0 {
		q.buf = nil
	}
	return b, nil
}

// segmentAfter returns the number of the next segment, 0 if there is none.
func (q *File) segmentAfter(number int, end position) (int, error) {
	if number >= end.Segment {
		return 0, nil
	}
	all, err := segments(q.path)
	if i, _ := slices.BinarySearch(all, number+1); i < len(all) {
		return all[i], err
	}
	return 0, err
}

func (q *File) reportMissing(first, last int) {
	q.dir.OnDamage(Damage{Segment: first, Detail: fmt.Sprintf("the segments %d to %d of the queue %s are missing, with their events", first,
		last, q.token)})
}

// segments returns the numbers of the segments in a queue, ascending.
func segments(path string) (all []int, err error) {
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		if name, is := strings.CutSuffix(e.Name(), ".seg"); is {
			if n, err := strconv.Atoi(name); err == nil && n > 0 && len(name) == 8 {
				all = append(all, n)
			}
		}
	}
	return all, err
}

// keepDamage copies bytes that are no records to damaged/.
func (q *File) keepDamage(at position, b []byte) error {
	name := fmt.Sprintf("%s-%08d-%d.bin", q.token, at.Segment, at.Offset)
	if err := q.dir.keep("damaged", name, b); err != nil {
		return err
	}
	q.dir.OnDamage(Damage{Segment: at.Segment, Offset: at.Offset, Bytes: len(b),
		Detail: fmt.Sprintf("%d bytes of the queue at %d of segment %d are damaged; they are kept in %s", len(b), at.Offset, at.Segment,
			filepath.Join("damaged", name))})
	return nil
}

// keep writes a file into a folder of the directory.
func (d *Dir) keep(folder, name string, content []byte) error {
	folder = filepath.Join(d.Path, folder)
	if err := d.makeFolder(folder); err != nil {
		return err
	}
	return writeFile(filepath.Join(folder, name), content, true)
}

// Settle removes the first of the events of the last Read: each has its final verdict.
func (q *File) Settle(events [][]byte) {
	last := q.ends[len(events)-1]
	q.ends = q.ends[len(events):]
	q.moveTo(last)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events -= len(events)
	q.settled += int64(len(events))
	for _, e := range events {
		q.bytes -= int64(headSize + len(e))
	}
}

// moveTo moves the cursor, and deletes the segments before it. If the cursor cannot be written, e.g. to a full disk, the events before it
// may be sent again after a crash; they are duplicates for the service then.
func (q *File) moveTo(at position) {
	from := q.cursor
	q.mu.Lock()
	q.cursor = at
	q.mu.Unlock()
	if err := writeJSON(filepath.Join(q.path, "cursor"), at, false); err != nil {
		_ = q.failure(err)
	}
	for n := from.Segment; n < at.Segment; n++ {
		_ = os.Remove(segmentPath(q.path, n))
	}
}

// clear corrects the counts of a queue that was read up to its end, e.g. after damage.
func (q *File) clear(end position) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == end {
		q.events, q.bytes, q.damaged = 0, 0, false
	}
}

// Peek returns the first event that is not settled, nil if there is none or it cannot be read.
func (q *File) Peek() []byte {
	q.mu.Lock()
	at := q.cursor
	q.mu.Unlock()
	for range 2 { // a cursor may be at the end of its segment
		f, err := os.Open(segmentPath(q.path, at.Segment))
		if err != nil {
			return nil
		}
		at.Offset = max(at.Offset, int64(len(magic)))
		b, _ := io.ReadAll(io.NewSectionReader(f, at.Offset, headSize+maxEvent))
		_ = f.Close()
		if event := recordAt(b); event != nil {
			return event
		}
		at = position{at.Segment + 1, 0}
	}
	return nil
}
