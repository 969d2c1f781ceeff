package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// TLSConfig reads the certificates; nil means plain TCP. The logger gets the later faults of their files.
func (k Kafka) TLSConfig(logger *slog.Logger) (*tls.Config, error) {
	if !k.TLS {
		return nil, nil
	}
	c := &tls.Config{ServerName: k.TLSServerName, MinVersion: tls.VersionTLS12}
	if k.TLSCA != "" {
		pem, err := os.ReadFile(k.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("reading KAFKA_TLS_CA: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("KAFKA_TLS_CA holds no certificate in PEM form")
		}
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

// KeyPair is a certificate with its key, which is read again when a file has changed.
type KeyPair struct {
	cert, key string
	logger    *slog.Logger
	now       func() time.Time
	mu        sync.Mutex
	read      *tls.Certificate
	at        [2]time.Time // of the files that were read
	failed    [2]time.Time // of the files that could not be read
	failedAt  time.Time
}

// retryAfter bounds how often files that cannot be read are read again: a handshake waits for it, and new permissions change no time of a file.
const retryAfter = time.Second

// ReadKeyPair reads a certificate and its key.
func ReadKeyPair(cert, key string, logger *slog.Logger) (*KeyPair, error) {
	k := &KeyPair{cert: cert, key: key, logger: logger, now: time.Now}
	k.at = k.changed()
	pair, err := tls.LoadX509KeyPair(cert, key)
	k.read = &pair
	return k, err
}

// Current returns the certificate. Files that cannot be used, e.g. between the writes of two, leave the previous one in use.
func (k *KeyPair) Current() *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, now := k.changed(), k.now()
	known := at == k.failed
	if at == k.at || known && now.Sub(k.failedAt) < retryAfter {
		return k.read
	}
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err == nil {
		k.read, k.at = &pair, at
		return k.read
	}
	k.failed, k.failedAt = at, now
	if !known {
		k.logger.Warn("a changed certificate cannot be read: the previous one stays in use", "certificate", k.cert, "key", k.key, "error", err)
	}
	return k.read
}

func (k *KeyPair) changed() (at [2]time.Time) {
	for i, path := range []string{k.cert, k.key} {
		if info, err := os.Stat(path); err == nil {
			at[i] = info.ModTime()
		}
	}
	return at
}
