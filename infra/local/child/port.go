package child

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/infra/local/folder"
)

// Ports are chosen below the range of outgoing connections (32768 on Linux, 49152 elsewhere). Otherwise
// an outgoing connection with the same number could block the restart of a server on its port, or a
// client could connect to itself.
const (
	firstPort = 20000
	lastPort  = 32000
)

// FreePort returns a port of 127.0.0.1 that no program uses.
func FreePort() (int, error) {
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if portFree(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free port found on 127.0.0.1")
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", Address(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// Address returns the address of a port of 127.0.0.1.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// RememberedPort returns the server's previous port if it is free, else a new one, so that addresses stay
// valid if possible.
func RememberedPort(file string) (int, error) {
	if b, err := os.ReadFile(file); err == nil {
		port, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err == nil && port > 0 && portFree(port) {
			return port, nil
		}
	}
	return FreePort()
}

// RememberPort keeps the server's port for RememberedPort.
func RememberPort(file string, port int) error {
	return folder.WriteFile(file, []byte(strconv.Itoa(port)+"\n"), 0o644)
}
