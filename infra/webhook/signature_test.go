package webhook

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

// The vector of the Standard Webhooks specification and of its reference libraries.
const (
	vectorSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorTime      = 1614265330
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

func TestSignaturesMatchThePublishedVector(t *testing.T) {
	got, err := sign([]string{vectorSecret}, vectorID, time.Unix(vectorTime, 0), []byte(vectorBody))
	if err != nil || got != vectorSignature {
		t.Errorf("%q, %v instead of %q", got, err, vectorSignature)
	}
}

func TestEachSecretSigns(t *testing.T) {
	other := "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	got, err := sign([]string{other, vectorSecret}, vectorID, time.Unix(vectorTime, 0), []byte(vectorBody))
	alone, _ := sign([]string{other}, vectorID, time.Unix(vectorTime, 0), []byte(vectorBody))
	if err != nil || got != alone+" "+vectorSignature || alone == vectorSignature {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOddSecretsAreRefusedWithoutTheirText(t *testing.T) {
	of := func(n int) string { return base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", n))) }
	for _, secret := range []string{"", "whsec_", of(32), "whsec_" + of(23), "whsec_" + of(65), "whsec_!" + of(32), "WHSEC_" + of(32)} {
		_, err := sign([]string{vectorSecret, secret}, vectorID, time.Unix(vectorTime, 0), nil)
		if err == nil || len(secret) > 10 && strings.Contains(err.Error(), secret[6:]) {
			t.Errorf("%q: %v", secret, err)
		}
	}
	for _, n := range []int{24, 64} {
		if _, err := sign([]string{"whsec_" + of(n)}, vectorID, time.Unix(vectorTime, 0), nil); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := sign(nil, vectorID, time.Unix(vectorTime, 0), nil); err == nil {
		t.Error("a message without a secret was signed")
	}
}
