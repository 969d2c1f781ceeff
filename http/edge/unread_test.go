package edge

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), payload...)
}

// streams returns n requests of HTTP/2 for a path, whose answers may not be sent: the window is 0. Each sends so many bytes of a body,
// and does not end.
func streams(n int, method, path, key string, body int) []byte {
	sent := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0})...)
	var header []byte
	for _, field := range [][2]string{{":method", method}, {":scheme", "http"}, {":path", path}, {":authority", "x"},
		{"authorization", "Bearer " + key}} {
		header = append(append(header, 0, byte(len(field[0]))), field[0]...)
		header = append(append(header, byte(len(field[1]))), field[1]...)
	}
	for i := range n {
		stream := uint32(2*i + 1)
		if body == 0 {
			sent = append(sent, frame(1, 5, stream, header)...)
			continue
		}
		sent = append(sent, frame(1, 4, stream, header)...)
		for left := body; left > 0; left -= 16 << 10 {
			sent = append(sent, frame(0, 0, stream, make([]byte, min(left, 16<<10)))...)
		}
	}
	return sent
}

// answered reads frames until n answers have begun.
func answered(t *testing.T, conn net.Conn, n int) {
	t.Helper()
	must.OK(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	for n > 0 {
		var head [9]byte
		_, err := io.ReadFull(conn, head[:])
		must.OK(t, err)
		_, err = io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
		must.OK(t, err)
		if head[3] == 1 {
			n--
		}
	}
}

// Answers that clients without a key do not read hold little: of many, the oldest end. Others are answered, before and behind them.
func TestP9_UnreadAnswersWithoutAKeyAreBounded(t *testing.T) {
	f := newDoorFixture(t, Config{})
	client := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	defer client.CloseIdleConnections()
	get := func(path, key string) int {
		r, err := http.NewRequest(http.MethodGet, "http://"+f.addr+path, nil)
		must.OK(t, err)
		r.Header.Set("Authorization", "Bearer "+key)
		got, err := client.Do(r)
		if err != nil {
			return 0
		}
		_ = got.Body.Close()
		return got.StatusCode
	}
	working := make(chan int)
	go func() { working <- get("/held", operatorKey) }()
	<-f.held
	before := runtime.NumGoroutine()
	for range 12 {
		conn := f.dial(1, "")
		go func() { _, _ = conn.Write(streams(250, http.MethodGet, "/", "mp_live_unknown", 0)) }()
		answered(t, conn, 250)
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before+maxUncharged+100; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines hold 3000 answers", runtime.NumGoroutine()-before)
		}
	}
	for key, want := range map[string]int{operatorKey: http.StatusOK, "mp_live_unknown": http.StatusUnauthorized} {
		if got := get("/", key); got != want {
			t.Errorf("a client that reads: %d, want %d", got, want)
		}
	}
	close(f.end)
	if got := <-working; got != http.StatusOK {
		t.Errorf("the request in work: %d", got)
	}
}

// Bodies that no operation reads are not kept: neither while the request is in work nor while its answer is not read.
func TestP9_BodiesThatNobodyReadsAreNotKept(t *testing.T) {
	for name, c := range map[string]struct{ method, path, key string }{
		"in work": {"GET", "/slow", operatorKey}, "answered": {"POST", "/", operatorKey}, "refused": {"POST", "/", "mp_live_unknown"},
	} {
		f := newDoorFixture(t, Config{})
		sent := streams(1, c.method, c.path, c.key, 900<<10)
		before := heap()
		for range 60 {
			conn := f.dial(1, string(sent))
			if c.path == "/" {
				answered(t, conn, 1)
			}
		}
		kept := uint64(0)
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if kept = heap() - before; kept < 10<<20 || kept > 1<<60 {
				break
			}
			if time.Now().After(end) {
				t.Errorf("%s: 60 bodies of 900 KiB hold %d MiB", name, kept>>20)
				break
			}
		}
		close(f.end)
	}
}

// Of many slow requests, the oldest of the address that has most of them ends.
func TestSlow_EndsTheOldestOfTheAddressWithMost(t *testing.T) {
	s, ended := &Slow{Most: 64}, ""
	begin := func(address string, n int) *SlowRequest {
		r := &SlowRequest{address, func() { ended += fmt.Sprint(address, n, " ") }}
		s.Join(r)
		return r
	}
	for n := range s.Most {
		r := begin([]string{"a", "b", "b"}[n%3], n)
		if n == 1 {
			s.Leave(r) // it has arrived
			begin("c", n)
		}
	}
	for n := range 3 {
		begin("c", n)
	}
	if want := "b2 b4 b5 "; ended != want || s.Load() != 64 {
		t.Errorf("ended: %s, want %s; %d are left", ended, want, s.Load())
	}
}

// heap returns the bytes in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
