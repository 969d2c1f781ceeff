// Package webhook sends requests to the endpoints of webhooks, as Standard Webhooks describes them. It holds no queue and no schedule, and
// dials only addresses that its rules permit.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Names of the headers.
const (
	headerID        = "webhook-id"
	headerTimestamp = "webhook-timestamp"
	headerSignature = "webhook-signature"
)

const (
	secretPrefix = "whsec_"
	// minKey and maxKey bound the bytes of a key, as Standard Webhooks does.
	minKey = 24
	maxKey = 64
)

// errSecret never repeats the secret.
var errSecret = errors.New("a webhook's secret is not whsec_ and the base64 of 24 to 64 bytes")

// sign returns the signatures of a message, one for each secret, separated by spaces.
func sign(secrets []string, id string, at time.Time, body []byte) (string, error) {
	signatures := make([]string, 0, len(secrets))
	for _, secret := range secrets {
		key, err := keyOf(secret)
		if err != nil {
			return "", err
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	if len(signatures) == 0 {
		return "", errors.New("the webhook has no secret")
	}
	return strings.Join(signatures, " "), nil
}

func keyOf(secret string) ([]byte, error) {
	text, found := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !found || err != nil || len(key) < minKey || len(key) > maxKey {
		return nil, errSecret
	}
	return key, nil
}
