package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/internal/must"
)

// TestCertificatesAreReadFirst: an unreadable certificate is reported before the server
// listens.
func TestCertificatesAreReadFirst(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	made := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &made, &made, key.Public(), key)
	must.OK(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must.OK(t, err)
	dir := t.TempDir()
	cfg := config.Config{HTTPTLSCert: filepath.Join(dir, "cert"), HTTPTLSKey: filepath.Join(dir, "key")}
	if _, err := httpTLS(cfg, nil, func(time.Time) {}); err == nil || !strings.Contains(err.Error(), "METERPLEX_HTTP_TLS_CERT") ||
		!strings.Contains(err.Error(), dir) {
		t.Errorf("without files: %v", err)
	}
	for path, block := range map[string]*pem.Block{cfg.HTTPTLSCert: {Type: "CERTIFICATE", Bytes: der},
		cfg.HTTPTLSKey: {Type: "PRIVATE KEY", Bytes: secret}} {
		must.OK(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	if got, err := httpTLS(cfg, nil, func(time.Time) {}); err != nil || got.GetCertificate == nil {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := httpTLS(config.Config{}, nil, nil); err != nil || got != nil {
		t.Errorf("without settings: %v, %v", got, err)
	}
}
