// Package local runs a real PostgreSQL as a child process, for a start without configuration and for tests.
// Package localkafka does so with Apache Kafka.
//
// Both find or download the programs (package download), keep their data between runs, listen on 127.0.0.1
// only, run as another user if this process is root (package account), and end their children when this process
// ends (package child). They must not imitate a server, must
// not trade durability for speed (fsync and synchronous commit stay on, also in tests), and do not know the
// stored data.
//
// Both may use the same DataDir: each uses its own folder in it (postgres/ and kafka/).
package local

import "errors"

// ErrNotPublished means that a version is not published for this platform.
var ErrNotPublished = errors.New("not published")
