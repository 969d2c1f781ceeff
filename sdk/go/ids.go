package meterplex

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// EventID returns the id of a use: the same tenant, feature, resource and time give the same id in every language, so that a use that is
// reported twice counts once. Resource identifies the use, e.g. the id of a request. A part that is empty or holds "|" is refused.
func EventID(tenant, feature, resource string, occurredAt time.Time) (string, error) {
	for _, part := range []string{tenant, feature, resource} {
		if part == "" || strings.Contains(part, "|") {
			return "", invalid("invalid_argument", "The part %q of an EventID is empty or holds |: two events could get one id", part)
		}
	}
	if year := occurredAt.UTC().Year(); year < 1 || year > 9999 {
		return "", invalid("invalid_argument", "The time %s of an EventID is not in the years 1 to 9999", occurredAt)
	}
	sum := sha256.Sum256([]byte(tenant + "|" + feature + "|" + resource + "|" + occurredAt.UTC().Format("2006-01-02T15:04:05.000000Z")))
	return hex.EncodeToString(sum[:])[:32], nil
}

var decimalForm = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// Amount returns decimal × 10^scale: Amount("1.5", "GB", 3) is 1500, in thousandths of a GB. What is not exact, not above 0, or above
// 9007199254740991 is an error, which names the unit.
func Amount(decimal, unit string, scale int) (int64, error) {
	refuse := func(why string) (int64, error) {
		return 0, invalid("amount_invalid", "The amount %.100q %s × 10^%d %s", decimal, unit, scale, why)
	}
	if !decimalForm.MatchString(decimal) || scale < 0 || scale > 100 {
		return refuse("is no decimal such as 12.5 with a scale of 0 to 100")
	}
	whole, fraction, _ := strings.Cut(decimal, ".")
	for len(fraction) < scale {
		fraction += "0"
	}
	if strings.Trim(fraction[scale:], "0") != "" {
		return refuse("is no integer: use a larger scale")
	}
	n, err := strconv.ParseInt(strings.TrimLeft(whole+fraction[:scale], "0"), 10, 64)
	if err != nil || n < 1 || n > maxAmount {
		return refuse("is not 1 to 9007199254740991")
	}
	return n, nil
}

// newID returns a random UUIDv7.
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:])
	binary.BigEndian.PutUint64(id[:], uint64(time.Now().UnixMilli())<<16|uint64(id[6]&0x0f|0x70)<<8|uint64(id[7]))
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
