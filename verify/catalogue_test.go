package verify

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
)

const aThird = "0190b5a0-0000-7000-8000-00000000000c"

// The log of a catalogue, and its rows as the tables' statements give them.
func catalogueWorld() (log []*row, rows map[catalogueRow]string) {
	at := func(position int, subject int16, body string) *row {
		r := event(int64(position), subject, 6, "e/x", body)
		r.tenant, r.occurred = uuid.MustParse(aThird), time.Date(2026, 3, 1, 0, 0, position, 0, time.UTC).UnixMicro()-databaseEpoch
		return r
	}
	const tenant = `{"id":"` + aThird + `","name":"T","class":"small","lateUsage":"`
	const subscription = `{"id":"s","tenantId":"` + aThird +
		`","plan":"p","entitlements":[{"feature":"f","limit":0}],"startsAt":"2026-02-01T01:00:00+01:00","status":"`
	log = []*row{
		at(1, tenantCreated, tenant+`REJECT"}`), at(2, tenantChanged, tenant+`ADJUST","closeAfterHours":3}`),
		at(3, tenantChanged, tenant+`ADJUST","closeAfterHours":3,"metadata":{}}`),
		at(4, keyCreated, `{"id":"k1","name":"k","scopes":["a"],"revokedAt":null}`),
		at(5, keyRotated,
			`{"old":{"id":"k1","name":"k","scopes":["a"],"revokedAt":"2026-03-01T00:00:05Z"},"new":{"id":"k2","name":"k","scopes":["a"],`+
				`"revokedAt":null}}`),
		at(6, featureDefined, `{"lookupKey":"f","name":"F","type":"QUOTA","groupBy":["a"]}`),
		at(7, featureDefined, `{"lookupKey":"f","name":"F2","type":"QUOTA","groupBySince":"2026-03-01T00:00:07.5Z"}`),
		at(8, planDefined, `{"key":"p","name":"P","entitlements":[]}`),
		at(9, priceDefined, `{"key":"e","version":2,"name":"E","tiers":[{"upTo":null,"microUnits":2}]}`),
		at(10, subscriptionCreated, subscription+`ACTIVE","reason":"a ticket"}`), at(11, subscriptionChanged, subscription+`CANCELLED"}`),
		at(12, subscriptionChanged, subscription+`EXPIRED"}`),
		at(13, thresholdChanged, `{"id":"t","percent":80,"createdAt":"2026-03-01T00:00:13Z"}`),
		at(14, thresholdChanged, `{"id":"t","percent":80,"removed":true}`),
		at(15, webhookChanged, `{"id":"w","url":"https://a","events":["push.failed"],"status":"ENABLED","secrets":1,"operators":true}`),
		at(16, webhookChanged,
			`{"id":"w","url":"https://a","events":["push.failed"],"status":"DISABLED","secrets":1,"operators":true,"disabledFor":"gone"}`),
	}
	return log, map[catalogueRow]string{
		{"tenants",
			aThird}: `{"name":"T","class":"small","lateUsage":"ADJUST","closeAfterHours":3,"externalIds":[],"metadata":{},"billing":null}`,
		{"tenant_policies", aThird + "/2"}:             `{"lateUsage":"ADJUST","closeAfterHours":3}`,
		{"api_keys", "k1"}:                             `{"name":"k","scopes":["a"],"revokedAt":"2026-03-01T00:00:05+00:00","ended":true}`,
		{"api_keys", "k2"}:                             `{"name":"k","scopes":["a"],"revokedAt":null,"ended":false}`,
		{"features", "f"}:                              `{"name":"F2","type":"QUOTA","unit":"","groupBy":[]}`,
		{"feature_groupings", "f/-62135596800.000000"}: `{"groupBy":["a"]}`,
		{"feature_groupings", "f/1772323207.500000"}:   `{"groupBy":[]}`,
		{"plans", "p"}:                                 `{"name":"P","entitlements":[]}`,
		{"prices",
			"e/2"}: `{"name":"E","microUnits":null,"packageSize":null,"tiers":[{"microUnits":2,"upTo":null}]}`,
		{"subscriptions",
			"s"}: `{"plan":"p","status":"EXPIRED","startsAt":"2026-02-01T00:00:00+00:00","entitlements":[{"feature":"f","limit":0}]}`,
		{"subscription_history", aThird + "/10"}: `{"effectiveAt":"2026-02-01T00:00:00+00:00","snapshot":` + subscription +
			`ACTIVE"}}`,
		{"subscription_history", aThird + "/11"}: `{"effectiveAt":"2026-03-01T00:00:11+00:00","snapshot":null}`,
		{"thresholds",
			"t"}: `{"feature":"","percent":80,"amount":null,"position":13,"removed":14,"createdAt":"2026-03-01T00:00:13+00:00"}`,
		{"webhooks",
			"w"}: `{"url":"https://a","events":["push.failed"],"status":"DISABLED","operators":true,"disabledFor":"gone"}`,
	}
}

func TestTheRowsOfTheCatalogueFollowFromTheLog(t *testing.T) {
	log, rows := catalogueWorld()
	read := func(changed catalogueRow, text string) *tally {
		x := newTestPass(stateAt(int64(len(log))))
		for _, r := range log {
			x.addCatalogue(r, nil, nil)
		}
		all := maps.Clone(rows)
		if text != "" {
			all[changed] = text
		}
		for r, text := range all {
			var is members
			if err := json.Unmarshal([]byte(text), &is); err != nil {
				t.Fatal(err)
			}
			x.compareRow(r, is)
		}
		for r := range x.catalogue {
			x.catalogued.expect(all[r] != "" && r != (catalogueRow{}), "%s is missing", r)
		}
		return x.catalogued
	}
	if r := read(catalogueRow{}, "").result(); !*r.Holds || r.Figures != "14 rows" {
		t.Errorf("%+v", r)
	}
	for r, c := range map[catalogueRow]struct{ row, fault string }{
		{"tenants", aThird}:                      {`{"name":"U"}`, `the name "U", in the log "T"`},
		{"tenants", "another"}:                   {`{"name":"U"}`, "has no event in the log"},
		{"tenant_policies", aThird + "/3"}:       {`{"lateUsage":"ADJUST"}`, "has no event in the log"},
		{"api_keys", "k1"}:                       {`{"ended":false}`, "the ended null, in the log true"},
		{"features", "f"}:                        {`{"groupBy":["a"]}`, `the groupBy ["a"], in the log null`},
		{"prices", "e/2"}:                        {`{"tiers":[{"microUnits":3,"upTo":null}]}`, "the tiers"},
		{"subscriptions", "s"}:                   {`{"entitlements":[{"feature":"f","limit":null}]}`, "the entitlements"},
		{"subscription_history", aThird + "/10"}: {`{"effectiveAt":"2026-02-01T00:00:01+00:00"}`, "the effectiveAt"},
		{"subscription_history", aThird + "/11"}: {`{"snapshot":{"id":"s"}}`, "the snapshot"},
		{"subscription_history", aThird + "/12"}: {`{"snapshot":null}`, "has no event in the log"},
		{"thresholds", "t"}:                      {`{"removed":null}`, "the removed null, in the log 14"},
		{"webhooks", "w"}:                        {`{"disabledFor":""}`, `the disabledFor null, in the log "gone"`},
	} {
		requireFault(t, r.String(), read(r, c.row), c.fault)
	}
}
