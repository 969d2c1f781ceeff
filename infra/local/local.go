// Package local runs a real PostgreSQL and a real single-node Apache Kafka as child processes, for a
// start without configuration and for tests.
//
// It finds or downloads the programs, keeps their data between runs, listens on 127.0.0.1 only, and ends
// its children when this process ends. It must not imitate either server, must not trade durability for
// speed (fsync and synchronous commit stay on, also in tests), and does not know the stored data.
//
// [StartPostgres] and [StartKafka] may use the same DataDir: each uses its own folder in it (postgres/
// and kafka/).
package local

import (
	"errors"
	"fmt"
	"io"
)

// ErrNoJava means that no Java runtime of version 17 or later was found.
var ErrNoJava = errors.New("no Java 17 or later")

// ErrNoMaven means that Maven is needed for a download and was not found.
var ErrNoMaven = errors.New("no Maven")

// ErrNotPublished means that a version is not published for this platform.
var ErrNotPublished = errors.New("not published")

// ErrExited is the error of a broker that ended before it answered, e.g. because its data is damaged.
var ErrExited = errors.New("the broker exited during its start")

// ErrDamaged means that a broker's data directory cannot be used: a file that each has is missing or unreadable.
var ErrDamaged = errors.New("the broker's data are damaged")

// ErrInUse means that another live process uses the data directory.
var ErrInUse = errors.New("data directory in use")

// ErrChanged means that a downloaded file is missing, unexpected, or does not match the checksum pinned in
// this program.
var ErrChanged = errors.New("downloaded files do not match the pinned checksums")

// note writes one line for the user. If w is nil, the line is discarded.
func note(w io.Writer, format string, args ...any) {
	if w == nil {
		return
	}
	fmt.Fprintf(w, format+"\n", args...)
}
