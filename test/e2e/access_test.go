package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// documentedACLs returns the lines of docs/how-to/kafka-access.md that grant ACLs, without "acl".
func documentedACLs(t *testing.T) (lines [][]string) {
	t.Helper()
	f, err := os.Open("../../docs/how-to/kafka-access.md")
	must.OK(t, err)
	defer f.Close()
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		if line, ok := strings.CutPrefix(scanner.Text(), "    acl "); ok {
			lines = append(lines, strings.Fields(line))
		}
	}
	if len(lines) < 20 {
		t.Fatalf("docs/how-to/kafka-access.md grants %d ACLs", len(lines))
	}
	return lines
}

// grantACL creates the ACL of a line with arguments of kafka-acls.sh.
func grantACL(w *deployment, admin *kadm.Client, line []string) (user string) {
	w.t.Helper()
	user, ok := strings.CutPrefix(line[0], "User:")
	b := kadm.NewACLs().Allow(line[0]).AllowHosts("*").ResourcePatternType(kadm.ACLPatternLiteral)
	var operations []kadm.ACLOperation
	for i := 1; i+1 < len(line); i += 2 {
		value := strings.ReplaceAll(strings.Trim(line[i+1], `"`), "${P}", w.prefix)
		switch line[i] {
		case "--operation":
			operation := map[string]kadm.ACLOperation{"Create": kadm.OpCreate, "AlterConfigs": kadm.OpAlterConfigs,
				"DescribeConfigs": kadm.OpDescribeConfigs,
				"Read":            kadm.OpRead, "Write": kadm.OpWrite}[value]
			ok = ok && operation != 0
			operations = append(operations, operation)
		case "--topic":
			b.Topics(value)
		case "--group":
			b.Groups(value)
		case "--resource-pattern-type":
			ok = ok && value == "prefixed"
			b.ResourcePatternType(kadm.ACLPatternPrefixed)
		default:
			ok = false
		}
	}
	if !ok || len(line)%2 == 0 {
		w.t.Fatalf("docs/how-to/kafka-access.md: %q is not read", line)
	}
	created, err := admin.CreateACLs(w.t.Context(), b.Operations(operations...))
	must.OK(w.t, err)
	for _, c := range created {
		if c.Err != nil {
			w.t.Fatal(c.Err, c.ErrMessage)
		}
	}
	return user
}

// The service works with exactly the ACLs of docs/how-to/kafka-access.md: with one login, and with a login for each role. Usage is
// counted, from both sides; a rebuild is promoted; a consumer is rewound; events are streamed. The broker speaks TLS; the logins are SCRAM
// users of both mechanisms, and one has a certificate. verify and doctor need no further rights, and lost rights are regained.
func TestTheServiceWorksWithTheACLsOfTheDocument(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	// relay first: it creates the topics
	roles := append([]string{"relay"}, slices.DeleteFunc(config.AllRoles(), func(role string) bool { return role == "relay" })...)
	users := map[string]string{"meterplex": "canary-s3cret"}
	for _, role := range roles {
		users[role] = "canary-s3cret-" + role
	}
	broker := newSecuredBroker(t, users)
	for _, c := range []struct {
		name  string
		roles map[string]string // of each user
	}{
		{"one login", map[string]string{"meterplex": ""}},
		{"a login for each role", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newDeployment(t)
			w.cluster = kafkatest.Cluster{broker.Broker}
			client := w.kafka()
			defer client.Close()
			admin, acls := kadm.NewClient(client), documentedACLs(t)
			for user, password := range users {
				setPassword(w, admin, user, password)
			}
			for _, line := range acls {
				if user := grantACL(w, admin, line); users[user] == "" {
					t.Fatalf("docs/how-to/kafka-access.md names the login %s: what is it for?", user)
				}
			}
			spans := newCollector(t)
			serve := func(user, roles string) *instance {
				w.access = broker.access(t, user, users[user])
				return w.serve(roles, append(spans.settings(), w.access...)...)
			}
			instances := map[string]*instance{}
			if c.roles == nil {
				for _, role := range roles {
					instances[role] = serve(role, role)
				}
			} else {
				instances["api"] = serve("meterplex", "")
			}
			workWithKafka(w, instances)
			for _, i := range instances {
				for _, refusal := range []string{"needs the ACL", "AUTHORIZATION_FAILED", "not authorized"} {
					if i.logContains(refusal) {
						t.Errorf("%s was refused by the broker: %s", i.name, i.lastLines(40))
					}
				}
			}
			if c.roles != nil {
				examineWithAccess(w, instances["api"])
				loseAccess(w, instances["api"], admin, "meterplex", users["meterplex"], acls)
			}
			w.finish()
			if got := spans.received(); len(got) < 1000 || bytes.Contains(got, []byte("canary")) {
				t.Errorf("%d bytes of spans were received, which may hold a password", len(got))
			}
		})
	}
}

// workWithKafka does each operation for which the service needs Kafka.
func workWithKafka(w *deployment, instances map[string]*instance) {
	w.t.Helper()
	api := instances["api"]
	w.catalogue(api)
	x := w.createTenants(api, 1)[0]
	w.ingest(api, x, "accepted", events("e", 50, "api_calls")...)
	o := newExternalProducer(w)
	o.batch(x)
	awaitConsumed(w)
	w.settle(api, x) // the ledger learns the verdicts of the messages
	w.drain()
	var moved struct{ ID, State string }
	w.ask(w.operator, http.MethodPost, api, "/api/v1/replays/rewind", map[string]any{"consumer": usageCommandsGroup, "to": "start",
		"reason": "e2e"}, &moved, http.StatusAccepted)
	within(w.t, "the consumer is rewound", func(context.Context) (bool, string) {
		w.ask(w.operator, http.MethodGet, api, "/api/v1/replays/"+moved.ID, nil, &moved, http.StatusOK)
		return moved.State == "DONE", fmt.Sprintf("%+v", moved)
	})
	r := startRebuild(w, api, "usage_aggregates")
	awaitReady(w, api, r.ID)
	w.ask(w.operator, http.MethodPost, api, "/api/v1/rebuilds/"+r.ID+"/promote", map[string]any{"reason": "e2e"}, nil, http.StatusAccepted)
	w.drain()
	status, body, err := callOnceServed(w, w.t.Context(), w.operator, http.MethodGet,
		api.url()+"/api/v1/events/stream?follow=false&last=5&tenantId="+uuid.MustParse(x.id).String(), nil)
	if err != nil || status != http.StatusOK || strings.Count(string(body), `"eventId"`) < 5 {
		w.t.Errorf("the stream: %d %s %v", status, body, err)
	}
}
