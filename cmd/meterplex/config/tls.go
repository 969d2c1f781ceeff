package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// TLSConfig reads the certificates; nil means plain TCP.
func (k Kafka) TLSConfig() (*tls.Config, error) {
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
		pair, err := ReadKeyPair(k.TLSCert, k.TLSKey)
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
	mu        sync.Mutex
	read      *tls.Certificate
	at        [2]time.Time // of the files that were read, or failed to be
}

// ReadKeyPair reads a certificate and its key.
func ReadKeyPair(cert, key string) (*KeyPair, error) {
	k := &KeyPair{cert: cert, key: key}
	k.at = k.changed()
	pair, err := tls.LoadX509KeyPair(cert, key)
	k.read = &pair
	return k, err
}

// Current returns the certificate. Files that do not fit, as between the writes of two, leave the one from before in use.
func (k *KeyPair) Current() *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	if at := k.changed(); at != k.at {
		k.at = at
		if pair, err := tls.LoadX509KeyPair(k.cert, k.key); err == nil {
			k.read = &pair
		}
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
