// Package webhooks verifies requests of Meterplex webhooks (Standard Webhooks). It is to be copied, and uses the standard library only.
package webhooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Tolerance is the greatest difference between the time of a request and that of the receiver.
const Tolerance = 5 * time.Minute

// Verify reports whether a request is signed with the secret and is not older than Tolerance. The body must be the bytes that were
// received.
func Verify(secret string, header http.Header, body []byte, now time.Time) bool {
	id, sent := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(sent, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > Tolerance {
		return false
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + sent + "."))
	mac.Write(body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for got := range strings.SplitSeq(header.Get("webhook-signature"), " ") {
		if hmac.Equal([]byte(got), []byte(want)) {
			return true
		}
	}
	return false
}
