package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
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
		pair, err := tls.LoadX509KeyPair(k.TLSCert, k.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("reading KAFKA_TLS_CERT and KAFKA_TLS_KEY: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
