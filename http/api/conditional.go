package api

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/query"
)

// EntityTag hashes the content of an answer without its position: a weak validator (RFC
// 9110, section 8.8.1).
func EntityTag(says []byte) string {
	sum := sha256.Sum256(says)
	return `W/"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
}

// Unchanged reports whether If-None-Match names the tag, by weak comparison.
func Unchanged(r *http.Request, tag string) bool {
	for _, value := range r.Header["If-None-Match"] {
		for candidate := range strings.SplitSeq(value, ",") {
			candidate = strings.TrimSpace(candidate)
			if candidate == "*" || strings.TrimPrefix(candidate, "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}

// maxTags bounds the tags of If-Match.
const maxTags = 16

// EntityTags returns the tags of If-Match: nil without the header, and for *, which any state matches. A weak tag matches
// no state (RFC 9110, section 8.8.3.2).
func EntityTags(values []string) ([]string, error) {
	var tags []string
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			one = strings.TrimSpace(one)
			opaque, strong := strings.TrimPrefix(one, "W/"), !strings.HasPrefix(one, "W/")
			switch {
			case one == "*" && len(values) == 1 && value == "*":
				return nil, nil
			case len(opaque) < 2 || opaque[0] != '"' || opaque[len(opaque)-1] != '"' ||
				strings.ContainsRune(opaque[1:len(opaque)-1], '"') || len(tags) == maxTags:
				return nil, problem.New("header_invalid",
					"If-Match has to be * or at most 16 entity tags in double quotes, separated by commas")
			case strong:
				tags = append(tags, opaque)
			default:
				tags = append(tags, "")
			}
		}
	}
	return tags, nil
}

// Freshness holds the parameters of a read that say how recent its data must be.
type Freshness struct {
	MinPosition string `query:"minPosition" example:"17-4711"`
	Prefer      string `header:"Prefer" doc:"wait=N: wait up to N seconds (at most 30) for minPosition (RFC 7240)." example:"wait=10"`
}

// maxWait is the longest wait that a reader may request.
const maxWait = 30 * time.Second

// Wait parses the parameters.
func (f Freshness) Wait() (query.Wait, error) {
	if f.MinPosition == "" {
		return query.Wait{}, nil
	}
	position, err := events.ParsePosition(f.MinPosition)
	if err != nil {
		return query.Wait{}, &domain.Error{Code: "position_invalid", Message: "minPosition: " + err.Error()}
	}
	return query.Wait{MinPosition: &position, For: PreferredWait(f.Prefer)}, nil
}

// Applied is the value of Preference-Applied, or "" without a preference.
func (f Freshness) Applied() string {
	if wait := PreferredWait(f.Prefer); wait > 0 && f.MinPosition != "" {
		return "wait=" + strconv.Itoa(int(wait/time.Second))
	}
	return ""
}

// PreferredWait reads wait=N from a Prefer header. An invalid preference is ignored, as
// RFC 7240 requires; N is capped at maxWait.
func PreferredWait(prefer string) time.Duration {
	value := Preference(prefer, "wait")
	seconds, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxWait)
}

// Preference returns the value of the first preference of a name in a Prefer header (RFC 7240), "" without one.
func Preference(prefer, name string) string {
	for one := range strings.SplitSeq(prefer, ",") {
		named, value, _ := strings.Cut(one, "=")
		if strings.EqualFold(strings.TrimSpace(named), name) {
			value, _, _ = strings.Cut(value, ";")
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

// AwaitFigures waits until the live figures of a tenant are as recent as requested.
func (s *Service) AwaitFigures(ctx context.Context, tenant uuid.UUID, f Freshness) error {
	wait, err := f.Wait()
	if err != nil {
		return err
	}
	return s.Reads.Periods.AwaitPassed(ctx, query.Viewer{Operator: true}, query.AggregatesSource(), tenant, wait)
}
