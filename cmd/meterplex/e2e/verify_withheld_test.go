package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// P3: a verdict that cannot be published is withheld and parked, and redone once the
// broker accepts it; verify holds in both states.
func TestP3_VerifyHandlesWithheldAndRetriedEvents(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	small, large := "500", "1048588"
	c := w.kafka()
	defer c.Close()
	admin := kadm.NewClient(c)
	within(t, "the topic for small records exists", func(ctx context.Context) (bool, string) {
		_, err := admin.CreateTopic(ctx, 32, 1, map[string]*string{"max.message.bytes": &small}, w.prefix+"usage.validated")
		return err == nil || errors.Is(err, kerr.TopicAlreadyExists), fmt.Sprint(err) // a busy broker may answer late
	})
	i := w.serve("")
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	one := events("", 1, "api_calls")
	noise := make([]byte, 120) // incompressible
	_, _ = rand.Read(noise)
	one[0].EventID = hex.EncodeToString(noise)
	w.ingest(i, x, "accepted", one...)
	letter := w.letter(i, x, "FAILED")
	if letter.Stage != "PUBLISHING" && letter.Stage != "AGGREGATION" {
		t.Errorf("the dead letter is of %s", letter.Stage)
	}
	w.drain()
	p := w.verify(nil, "--only", "database,topics", "--watch", "0s")
	w.requireProven("withheld", p)
	w.figure(p, "P3 consumed verdicts = ", "1 withheld")
	w.figure(p, "P11 each record equals its event", "1 stand-ins")

	_, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &large}}, w.prefix+"usage.validated")
	must.OK(t, err)
	within(t, "the verdict is redone", func(context.Context) (bool, string) {
		var page struct{ Data []deadLetter }
		w.ask(w.operator, http.MethodGet, i, "/api/v1/dead-letters?tenantId="+x.id, nil, &page, http.StatusOK)
		if len(page.Data) == 1 && page.Data[0].Status == "FAILED" {
			_, _, _ = w.call(t.Context(), w.operator, http.MethodPost, i.url()+"/api/v1/dead-letters/"+letter.ID+"/retry", object{"reason": "a test"}) // 409 if a retry is under way
		}
		return len(page.Data) == 1 && page.Data[0].Status == "RESOLVED", fmt.Sprintf("%+v", page.Data)
	})
	w.drain()
	p = w.verify(nil, "--only", "database,topics", "--watch", "0s")
	w.requireProven("redone", p)
	w.figure(p, "P3 consumed verdicts = ", "1 applied")
	if n := w.number(`SELECT count(*) FROM event_log_rows WHERE subject = 12`); n == 0 {
		t.Error("no verdict was redone")
	}
}

// figure fails the test unless a check's figures contain a text.
func (w *deployment) figure(p verifyResult, check, text string) {
	w.t.Helper()
	n := slices.IndexFunc(p.lines, func(l verifyLine) bool { return strings.HasPrefix(l.Check, check) })
	if n < 0 || !strings.Contains(p.lines[n].Figures, text) {
		w.t.Errorf("%s has no figures with %q: %s", check, text, p.String())
	}
}
