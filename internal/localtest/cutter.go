package localtest

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Cutter is a proxy before the database that cuts connections at COMMIT.
type Cutter struct {
	listener net.Listener
	server   string
	Answer   atomic.Int32 // number of answers to COMMIT to drop: the COMMIT is durable, the client gets no answer
	Request  atomic.Int32 // number of COMMITs to drop: they never happen
	Reached  atomic.Int32 // number of COMMITs that were cut
	Opened   atomic.Int32 // number of connections to the database
	wg       sync.WaitGroup
}

// LostCommits returns, by the name of a test case, the number of COMMITs that a Cutter drops.
var LostCommits = map[string]func(*Cutter) *atomic.Int32{
	"answer lost":  func(c *Cutter) *atomic.Int32 { return &c.Answer },
	"request lost": func(c *Cutter) *atomic.Int32 { return &c.Request },
}

// NewCutter starts a Cutter before a database, and returns the address of the database through it.
func NewCutter(t *testing.T, database string) (*Cutter, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cutter{server: u.Host}
	if c.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c.wg.Go(c.accept)
	t.Cleanup(func() { c.listener.Close(); c.wg.Wait() })
	u.Host = c.listener.Addr().String()
	return c, u.String()
}

func (c *Cutter) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.Opened.Add(1)
		server, err := net.Dial("tcp", c.server)
		if err != nil {
			client.Close()
			continue
		}
		c.wg.Go(func() { c.pass(server, client, c.isRequest(), &c.Request) })
		c.wg.Go(func() { c.pass(client, server, isAnswer, &c.Answer) })
	}
}

// pass copies until a chunk is to be cut; then both ends are closed.
func (c *Cutter) pass(to, from net.Conn, cuts func([]byte) bool, armed *atomic.Int32) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if cuts(buf[:n]) && armed.Load() > 0 {
			armed.Add(-1)
			c.Reached.Add(1)
			return
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

func isAnswer(chunk []byte) bool { return bytes.Contains(chunk, []byte("COMMIT\x00")) }

// simpleCommit is a COMMIT that is sent as text: its type, its length and itself.
var simpleCommit = []byte("Q\x00\x00\x00\x0bcommit\x00")

// isRequest knows a COMMIT by its text, or by the name it was prepared under.
func (c *Cutter) isRequest() func([]byte) bool {
	var name []byte
	return func(chunk []byte) bool {
		if bytes.Contains(chunk, simpleCommit) {
			return true
		}
		if at := bytes.Index(chunk, []byte("\x00commit\x00")); at >= 0 {
			start := bytes.LastIndexByte(chunk[:at], 0) + 2 // behind the last byte of the message's length
			name = append([]byte{0}, append(bytes.Clone(chunk[start:at]), 0)...)
			return false
		}
		return name != nil && bytes.Contains(chunk, name)
	}
}
