package local

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Ports are chosen below the range of outgoing connections (32768 on Linux, 49152 elsewhere). Otherwise
// an outgoing connection with the same number could block the restart of a server on its port, or a
// client could connect to itself.
const (
	firstPort = 20000
	lastPort  = 32000
)

func freePort() (int, error) {
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if portFree(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free port found on 127.0.0.1")
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// rememberedPort returns the server's previous port if it is free, else a new one, so that addresses stay
// valid if possible.
func rememberedPort(file string) (int, error) {
	if b, err := os.ReadFile(file); err == nil {
		port, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err == nil && port > 0 && portFree(port) {
			return port, nil
		}
	}
	return freePort()
}

func rememberPort(file string, port int) error {
	return writeFile(file, []byte(strconv.Itoa(port)+"\n"), 0o644)
}

// writeFile replaces a file atomically: a reader sees the old or the new content.
func writeFile(path string, content []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
