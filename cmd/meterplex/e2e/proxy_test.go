package e2e

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// proxy stands between clients and the service and can keep answers back.
type proxy struct {
	t        testing.TB
	listener net.Listener
	target   func() string

	mu      sync.Mutex
	conns   []net.Conn
	swallow bool
	count   int // connections on which an answer was swallowed
	wait    sync.WaitGroup
}

func newProxy(t testing.TB, target func() string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, listener: l, target: target}
	p.wait.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) url() string { return "http://" + p.listener.Addr().String() }

// swallowAnswers lets requests through, and not one byte back.
func (p *proxy) swallowAnswers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow = true
}

func (p *proxy) swallowed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// close cuts everything.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", strings.TrimPrefix(p.target(), "http://"))
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.wait.Go(func() { _, _ = io.Copy(out, in) })
		p.wait.Go(func() { p.back(in, out) })
	}
}

// back carries the answers.
func (p *proxy) back(in, out net.Conn) {
	buffer, first := make([]byte, 64<<10), true
	for {
		n, err := out.Read(buffer)
		if err != nil {
			_ = in.Close()
			return
		}
		p.mu.Lock()
		swallow := p.swallow
		if swallow && first {
			p.count, first = p.count+1, false
		}
		p.mu.Unlock()
		if !swallow {
			if _, err := in.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
}
