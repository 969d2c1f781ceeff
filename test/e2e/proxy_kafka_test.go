package e2e

import (
	wire "encoding/binary"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/meterplex/meterplex/internal/must"
)

// newPipeProxies makes a proxy for each broker in front of an instance. Brokers advertise
// their addresses to clients; the proxies replace these by their own.
func newPipeProxies(t testing.TB, brokers []string) (all []*proxy) {
	t.Helper()
	ports := map[int32]int32{}
	for _, at := range brokers {
		p := newProxy(t, func() string { return at })
		ports[portOf(t, at)] = portOf(t, p.addr())
		p.codec = func() (forth, back reader) {
			c := &brokerNames{ports: ports, asked: map[int32][2]int16{}}
			return c.toBroker, c.toClient
		}
		all = append(all, p)
	}
	for _, p := range all {
		p.start()
	}
	return all
}

func portOf(t testing.TB, at string) int32 {
	t.Helper()
	_, text, _ := net.SplitHostPort(at)
	port, err := strconv.ParseInt(text, 10, 32)
	must.OK(t, err)
	return int32(port)
}

// brokerNames rewrites the brokers' advertised ports to the ports of the proxies.
type brokerNames struct {
	ports map[int32]int32 // proxy ports by broker port

	mu    sync.Mutex
	asked map[int32][2]int16 // key and version by correlation
}

const (
	metadataKey        = 3
	findCoordinatorKey = 10
)

func (c *brokerNames) toBroker(from io.Reader) ([]byte, error) {
	frame, err := frameOf(from)
	if err == nil && len(frame) >= 12 {
		key, version := int16(wire.BigEndian.Uint16(frame[4:])), int16(wire.BigEndian.Uint16(frame[6:]))
		if key == metadataKey || key == findCoordinatorKey {
			c.mu.Lock()
			c.asked[int32(wire.BigEndian.Uint32(frame[8:]))] = [2]int16{key, version}
			c.mu.Unlock()
		}
	}
	return frame, err
}

func (c *brokerNames) toClient(from io.Reader) ([]byte, error) {
	frame, err := frameOf(from)
	if err != nil || len(frame) < 8 {
		return frame, err
	}
	correlation := int32(wire.BigEndian.Uint32(frame[4:]))
	c.mu.Lock()
	asked, found := c.asked[correlation]
	delete(c.asked, correlation)
	c.mu.Unlock()
	if !found {
		return frame, nil
	}
	return c.renamed(frame, asked[0], asked[1]), nil
}

// renamed returns the answer with the proxies' ports.
func (c *brokerNames) renamed(frame []byte, key, version int16) []byte {
	answer := kmsg.ResponseForKey(key)
	answer.SetVersion(version)
	head := 8
	if answer.IsFlexible() {
		head++ // no tags
	}
	if len(frame) < head || answer.ReadFrom(frame[head:]) != nil {
		return frame
	}
	switch a := answer.(type) {
	case *kmsg.MetadataResponse:
		for n := range a.Brokers {
			a.Brokers[n].Port = c.ports[a.Brokers[n].Port]
		}
	case *kmsg.FindCoordinatorResponse:
		if a.Port > 0 {
			a.Port = c.ports[a.Port]
		}
		for n := range a.Coordinators {
			if a.Coordinators[n].Port > 0 {
				a.Coordinators[n].Port = c.ports[a.Coordinators[n].Port]
			}
		}
	}
	changed := answer.AppendTo(append(make([]byte, 0, len(frame)+64), frame[:head]...))
	wire.BigEndian.PutUint32(changed, uint32(len(changed)-4))
	return changed
}

// frameOf reads one message of Kafka's protocol, its length included.
func frameOf(from io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, 4+wire.BigEndian.Uint32(size[:]))
	copy(frame, size[:])
	_, err := io.ReadFull(from, frame[4:])
	return frame, err
}
