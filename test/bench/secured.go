package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/infra/local/localkafka"
)

// The service's login to a secured broker.
const (
	securedUser     = "service"
	securedPassword = "a-long-password-of-the-benchmark"
	// securedAgain is the time after which clients log in again.
	securedAgain = time.Hour
)

// startBroker starts the broker, and returns the settings of the service for a secured one.
func startBroker(ctx context.Context, cfg *Config, dir string) (*localkafka.Broker, []string, error) {
	kafka, login := localkafka.Config{DataDir: dir}, []string(nil)
	if cfg.KafkaTLS {
		var err error
		if kafka, login, err = securedKafka(dir); err != nil {
			return nil, nil, err
		}
	}
	kafka.Log = cfg.Log
	broker, err := localkafka.Start(ctx, kafka)
	if err != nil || !cfg.KafkaTLS {
		return broker, nil, err
	}
	return broker, append(login, "KAFKA_BROKERS="+strings.Join(broker.SecuredBrokers(), ",")), admitSecured(ctx, broker.Brokers())
}

// securedKafka returns the configuration of a broker that the service reaches over TLS with a SCRAM password, and the settings of
// the service without the address.
func securedKafka(dir string) (localkafka.Config, []string, error) {
	certificate, key, err := selfSigned()
	if err != nil {
		return localkafka.Config{}, nil, err
	}
	file := filepath.Join(dir, "kafka-ca.pem")
	if err := os.WriteFile(file, []byte(certificate), 0o644); err != nil {
		return localkafka.Config{}, nil, fmt.Errorf("write the broker's certificate: %w", err)
	}
	return localkafka.Config{DataDir: dir, Users: map[string]string{securedUser: securedPassword},
			TLS: &localkafka.TLS{Certificate: certificate, Key: key, ClientCA: certificate, LogInAgain: securedAgain}},
		[]string{"KAFKA_TLS_ENABLED=true", "KAFKA_TLS_CA=" + file, "KAFKA_SASL_MECHANISM=SCRAM-SHA-512",
			"KAFKA_SASL_USERNAME=" + securedUser, "KAFKA_SASL_PASSWORD=" + securedPassword}, nil
}

// selfSigned returns a certificate for the loopback address and its key, in PEM.
func selfSigned() (certificate, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return "", "", fmt.Errorf("sign a certificate: %w", err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", fmt.Errorf("encode a key: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})), nil
}

// admitSecured gives the service's user its password and all rights.
func admitSecured(ctx context.Context, brokers []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return fmt.Errorf("create a Kafka client: %w", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	changed, err := admin.AlterUserSCRAMs(ctx, nil,
		[]kadm.UpsertSCRAM{{User: securedUser, Mechanism: kadm.ScramSha512, Iterations: 4096, Password: securedPassword}})
	if err == nil {
		err = changed.Error()
	}
	if err != nil {
		return fmt.Errorf("set the password of the service: %w", err)
	}
	rights := kadm.NewACLs().Allow("User:" + securedUser).AllowHosts("*").Topics("*").Groups("*").TransactionalIDs("*").Clusters().
		Operations(kadm.OpAll)
	if _, err := admin.CreateACLs(ctx, rights); err != nil {
		return fmt.Errorf("give the service its rights: %w", err)
	}
	return nil
}
