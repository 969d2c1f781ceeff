package config

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"time"
)

// TLSWarnings returns the faults of the files of certificates and keys that do not prevent a start: keys that every user of the
// machine may read, and certificates that have expired. Files that cannot be read are an error at their use.
func (c *Config) TLSWarnings(now time.Time) (warnings []string) {
	for _, f := range []struct{ name, path string }{
		{"METERPLEX_HTTP_TLS_CERT", c.HTTPTLSCert}, {"METERPLEX_HTTP_TLS_KEY", c.HTTPTLSKey},
		{"KAFKA_TLS_CA", c.Kafka.TLSCA}, {"KAFKA_TLS_CERT", c.Kafka.TLSCert}, {"KAFKA_TLS_KEY", c.Kafka.TLSKey},
	} {
		if f.path == "" {
			continue
		}
		for _, w := range fileWarnings(f.path, now) {
			warnings = append(warnings, f.name+": "+w)
		}
	}
	return warnings
}

func fileWarnings(path string, now time.Time) (warnings []string) {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for block := (*pem.Block)(nil); ; {
		if block, rest = pem.Decode(rest); block == nil {
			slices.Sort(warnings)
			return slices.Compact(warnings)
		}
		if block.Type != "CERTIFICATE" {
			if mode := info.Mode().Perm(); mode&0o007 != 0 {
				warnings = append(warnings, fmt.Sprintf("every user of this machine may use the private key in %s (mode %#o): chmod "+
					"600, or 640 with a group that only the service has", path, mode))
			}
			continue
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && !now.Before(cert.NotAfter) {
			warnings = append(warnings, fmt.Sprintf("a certificate in %s expired at %s", path, cert.NotAfter.UTC().Format(time.RFC3339)))
		}
	}
}
