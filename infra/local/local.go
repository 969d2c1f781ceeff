// Package local runs a real PostgreSQL and a real single-node Apache Kafka as
// child processes, for a start without any configuration and for tests.
//
// It finds or fetches the programs, keeps their data between runs, listens on
// 127.0.0.1 only, and ends its children when this process ends. It may not
// imitate either server, may not trade durability for speed (fsync and
// synchronous commit stay on, also in tests), and knows nothing of what is
// stored in them.
//
// A DataDir given to [StartPostgres] and to [StartKafka] may be the same one:
// each keeps to its own folder in it (postgres/ and kafka/).
package local

import (
	"errors"
	"fmt"
	"io"
)

// ErrNoJava says that no Java runtime of version 17 or later was found.
var ErrNoJava = errors.New("no Java 17 or later")

// ErrNoMaven says that Maven is needed to fetch something and was not found.
var ErrNoMaven = errors.New("no Maven")

// ErrNotPublished says that a version is published nowhere for this platform.
var ErrNotPublished = errors.New("not published")

// ErrInUse says that another live process works on the same data directory.
var ErrInUse = errors.New("data directory is in use")

// ErrChanged says that a fetched file is missing, was not expected or does not
// have the checksum pinned in this program.
var ErrChanged = errors.New("fetched files are not the pinned ones")

// note writes one line for the person who runs the program; without a writer
// it says nothing.
func note(w io.Writer, format string, args ...any) {
	if w == nil {
		return
	}
	fmt.Fprintf(w, format+"\n", args...)
}
