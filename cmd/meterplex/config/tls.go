package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// TLSConfig reads the certificates; nil means plain TCP. The logger gets the later faults of their files. Connections later than the first
// use the roots of Authorities.
func (k Kafka) TLSConfig(logger *slog.Logger) (*tls.Config, error) {
	if !k.TLS {
		return nil, nil
	}
	c := &tls.Config{ServerName: k.TLSServerName, MinVersion: tls.VersionTLS12}
	authorities, err := k.Authorities(logger)
	if err != nil {
		return nil, err
	}
	if authorities != nil {
		c.RootCAs = authorities()
	}
	if k.TLSCert != "" {
		pair, err := ReadKeyPair(k.TLSCert, k.TLSKey, logger)
		if err != nil {
			return nil, fmt.Errorf("reading KAFKA_TLS_CERT and KAFKA_TLS_KEY: %w", err)
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Current(), nil }
	}
	return c, nil
}

// Authorities returns the roots of KAFKA_TLS_CA for the next connection, which are read again when the file has changed; nil means the
// system's.
func (k Kafka) Authorities(logger *slog.Logger) (func() *x509.CertPool, error) {
	if !k.TLS || k.TLSCA == "" {
		return nil, nil
	}
	roots, err := readFiles(logger, func() (*x509.CertPool, error) {
		pem, err := os.ReadFile(k.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("reading KAFKA_TLS_CA: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, errors.New("KAFKA_TLS_CA holds no certificate in PEM form")
		}
		return pool, nil
	}, k.TLSCA)
	return roots.Current, err
}

// Files are what two files at most hold, read again when one has changed.
type Files[T any] struct {
	paths    []string
	load     func() (T, error)
	logger   *slog.Logger
	now      func() time.Time
	mu       sync.Mutex
	read     T
	at       [2]time.Time // of the files that were read
	failed   [2]time.Time // of the files that could not be read
	failedAt time.Time
}

// retryAfter bounds how often files that cannot be read are read again: a handshake waits for it, and new permissions change no time of a
// file.
const retryAfter = time.Second

// ReadKeyPair reads a certificate and its key.
func ReadKeyPair(cert, key string, logger *slog.Logger) (*Files[*tls.Certificate], error) {
	return readFiles(logger, func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		return &pair, err
	}, cert, key)
}

func readFiles[T any](logger *slog.Logger, load func() (T, error), paths ...string) (f *Files[T], err error) {
	f = &Files[T]{paths: paths, load: load, logger: logger, now: time.Now}
	f.at = f.changed()
	f.read, err = load()
	return f, err
}

// Current returns what the files hold. Files that cannot be used, e.g. between the writes of two, leave the previous content in use.
func (f *Files[T]) Current() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, now := f.changed(), f.now()
	known := at == f.failed
	if at == f.at || known && now.Sub(f.failedAt) < retryAfter {
		return f.read
	}
	read, err := f.load()
	if err == nil {
		f.read, f.at = read, at
		return f.read
	}
	f.failed, f.failedAt = at, now
	if !known {
		f.logger.Warn("a changed certificate cannot be read: the previous one stays in use", "files", strings.Join(f.paths, ", "), "error",
			err)
	}
	return f.read
}

func (f *Files[T]) changed() (at [2]time.Time) {
	for i, path := range f.paths {
		if info, err := os.Stat(path); err == nil {
			at[i] = info.ModTime()
		}
	}
	return at
}
