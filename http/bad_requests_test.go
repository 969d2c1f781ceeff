package http_test

// badReads are reads by a tenant's key.
const badReads = `
GET /usage/events?from=2026-05-02T00:00:00Z&to=2026-05-01T00:00:00Z 400 parameter_invalid
GET /usage/events?tenantId={nobody} 404 tenant_not_found
GET /usage/events/'%20OR%201=1-- 404 not_found
GET /entitlements/a%2Fb/check 400 feature_invalid
GET /entitlements/api_calls/check?amount=9007199254740992 400 parameter_invalid
GET /usage/aggregates?period=2026-13 400 parameter_invalid
GET /usage/aggregates?format=csv&limit=5 400 parameter_invalid
GET /usage/aggregates?asOf=2026-05-01T00:00:00Z&asOfPosition=1-1 400 parameter_invalid
GET /usage/aggregates?asOfPosition={elsewhere}-1 400 position_invalid
GET /usage/aggregates?asOfPosition={home}-999999 400 position_invalid
GET /usage/aggregates?asOf=2199-01-01T00:00:00Z 400 position_invalid
GET /usage/aggregates/explain?feature=a 400 parameter_missing
GET /usage/aggregates/explain?feature=a&periodKey=2026-13 400 parameter_invalid
GET /usage?feature=api_calls&from=2026-05-01T00:00:00Z 400 parameter_missing
GET /usage?{day}&granularity=month 400 parameter_invalid
GET /usage?{day}&groupBy=metadata.zone 400 parameter_invalid
GET /usage?{day}&format=csv&limit=5 400 parameter_invalid
GET /usage?feature=api_calls&from=2026-05-01T00:30:00Z&to=2026-05-02T00:00:00Z&granularity=hour 400 parameter_invalid
GET /usage?feature=api_calls&from=0001-01-01T00:00:00Z&to=9999-12-01T00:00:00Z&granularity=month 400 parameter_invalid
GET /usage?feature=nothing&from=2026-05-01T00:00:00Z&to=2026-05-02T00:00:00Z 404 feature_not_found
POST /entitlements/check 400 features_invalid {"features":[]}
POST /entitlements/check 400 amount_invalid {"features":[{"feature":"sso","amount":-1}]}
POST /entitlements/check 400 feature_invalid {"features":[{"feature":"SSO"}]}
GET /events?subject=meterplex.usage.event.recorded.v9 400 subject_unknown
GET /events?stream=invoice/1 400 stream_invalid
GET /events?correlationId=1 400 parameter_invalid
GET /events?after={elsewhere}-1 400 position_invalid
GET /events?after=1-1,1-2 400 position_invalid
GET /events/export?format=parquet 400 format_not_supported
GET /events/stream?after=0-0,1-1&last=5 400 parameter_invalid
GET /events/17-999 404 not_found
GET /events/{nobody} 404 not_found
`

// badQuotas are requests to consume, and about the reservation "held" of 10 and the ended one "ended".
const badQuotas = `
POST /entitlements/API/consume 400 feature_invalid {"eventId":"bad","amount":1}
POST /entitlements/sso/consume 409 not_entitled {"eventId":"bad","amount":1}
POST /entitlements/nothing/consume 404 feature_not_found {"eventId":"bad","amount":1}
POST /entitlements/api_calls/consume 400 amount_invalid {"eventId":"bad","amount":1.0}
POST /entitlements/api_calls/consume 400 event_id_invalid {"eventId":"a b","amount":1}
POST /entitlements/api_calls/consume 400 metadata_invalid {"eventId":"bad","amount":1,"metadata":{"a":"\u0000"}}
POST /entitlements/api_calls/consume 400 metadata_too_large {"eventId":"bad","amount":1,"metadata":{"a":"<x4096>"}}
POST /entitlements/api_calls/consume 400 member_missing {"eventId":"bad"}
POST /entitlements/api_calls/consume 409 quota_exceeded {"eventId":"bad","amount":991}
POST /entitlements/consume 400 items_invalid {"items":[]}
POST /entitlements/consume 400 amount_invalid {"items":[{"feature":"storage","eventId":"1","amount":1},{"feature":"api_calls",
  "eventId":"2","amount":0}]}
POST /entitlements/consume 400 event_id_invalid {"items":[{"feature":"sso","eventId":"1","amount":1},{"feature":"sso","eventId":"1",
  "amount":1}]}
POST /entitlements/consume 400 feature_invalid {"items":[{"feature":"API","eventId":"1","amount":1}]}
POST /entitlements/consume 404 feature_not_found {"items":[{"feature":"nothing","eventId":"1","amount":1}]}
POST /entitlements/consume 409 not_entitled {"items":[{"feature":"storage","eventId":"1","amount":1},{"feature":"sso","eventId":"2",
  "amount":1}]}
POST /entitlements/consume 409 quota_exceeded {"items":[{"feature":"api_calls","eventId":"1","amount":501},{"feature":"api_calls",
  "eventId":"2","amount":490}]}
POST /entitlements/a%20b/reservations 400 feature_invalid {"reservationId":"bad","amount":1}
POST /entitlements/sso/reservations 409 not_entitled {"reservationId":"bad","amount":1}
POST /entitlements/nothing/reservations 404 feature_not_found {"reservationId":"bad","amount":1}
POST /entitlements/api_calls/reservations 400 reservation_id_invalid {"reservationId":"a b","amount":1}
POST /entitlements/api_calls/reservations 400 amount_invalid {"reservationId":"bad","amount":0}
POST /entitlements/api_calls/reservations 400 ttl_seconds_invalid {"reservationId":"bad","amount":1,"ttlSeconds":86401}
POST /entitlements/api_calls/reservations 409 quota_exceeded {"reservationId":"bad","amount":991}
POST /entitlements/api_calls/reservations 409 reservation_conflict {"reservationId":"held","amount":11}
POST /entitlements/storage/reservations 409 reservation_conflict {"reservationId":"held","amount":10}
POST /entitlements/reservations 400 items_invalid {"items":null}
POST /entitlements/reservations 400 reservation_id_invalid {"items":[{"feature":"sso","reservationId":"1","amount":1},{"feature":"sso",
  "reservationId":"1","amount":1}]}
POST /entitlements/reservations 409 reservation_conflict {"items":[{"feature":"storage","reservationId":"1","amount":1},
  {"feature":"api_calls","reservationId":"held","amount":11}]}
POST /entitlements/api_calls/reservations/held/extend 400 ttl_seconds_invalid {"ttlSeconds":0}
POST /entitlements/api_calls/reservations/held/commit 400 event_id_invalid {"eventId":"a b","amount":1}
POST /entitlements/api_calls/reservations/held/commit 400 amount_invalid {"eventId":"bad","amount":1e3}
POST /entitlements/api_calls/reservations/held/commit 400 overage_invalid {"eventId":"bad","amount":1,"overage":"RECORD"}
POST /entitlements/api_calls/reservations/held/commit 409 amount_exceeds_hold {"eventId":"bad","amount":11,"overage":"deny"}
POST /entitlements/api_calls/reservations/ended/commit 409 reservation_ended {"eventId":"bad","amount":1}
POST /entitlements/api_calls/reservations/ended/extend 409 reservation_ended {"ttlSeconds":5}
POST /entitlements/api_calls/reservations/nobody/commit 404 reservation_not_found {"eventId":"bad","amount":1}
POST /entitlements/storage/reservations/held/extend 404 reservation_not_found {"ttlSeconds":5}
DELETE /entitlements/storage/reservations/held 404 reservation_not_found
DELETE /entitlements/api_calls/reservations/..%2Fapi-keys 404 reservation_not_found
DELETE /entitlements/api_calls/reservations/<x256> 400 reservation_id_invalid
`

const badLetters = `
POST /dead-letters/{nobody}/discard 400 reason_invalid {"reason":§} § "" | "\u0000" | "<é501>" | null
POST /dead-letters/{nobody}/discard 404 not_found {"reason":"r"}
POST /dead-letters/{nobody}/discard 415 media_type_unsupported
POST /dead-letters/bulk 400 reason_invalid {"action":"discard","filter":{"stage":"VALIDATION"}§} §  | ,"reason":"" | ,"reason":" \t"
POST /dead-letters/bulk 400 member_missing {"action":"retry"}
POST /dead-letters/bulk 400 action_invalid {"action":"delete","filter":{"stage":"VALIDATION"}}
POST /dead-letters/bulk 400 expected_matched_invalid {"action":"retry","filter":{"stage":"VALIDATION"},"expectedMatched":§} § -1 | 1.5 |
  10001
POST /dead-letters/bulk 400 filter_empty {"action":"retry","filter":§} § {} | {"status":null}
POST /dead-letters/bulk 400 filter_invalid {"action":"retry","filter":null}
POST /dead-letters/bulk 400 status_invalid {"action":"retry","filter":{"status":"failed"}}
POST /dead-letters/bulk 400 tenant_id_invalid {"action":"retry","filter":{"stage":"VALIDATION","tenantId":""},"dryRun":true}
POST /dead-letters/bulk 400 from_invalid {"action":"retry","filter":{"stage":"VALIDATION","from":""},"dryRun":true}
POST /dead-letters/bulk 400 stage_invalid {"action":"retry","filter":{"stage":"ALL"}}
POST /dead-letters/bulk 400 fingerprint_invalid {"action":"retry","filter":{"fingerprint":"abc"}}
POST /dead-letters/bulk 400 feature_invalid {"action":"retry","filter":{"feature":""}}
POST /dead-letters/bulk 400 ids_invalid {"action":"retry","filter":{"ids":§}} § [] | ["x"]
POST /dead-letters/bulk 400 parameter_invalid {"action":"retry","filter":{"from":§}} § "yesterday" | "2026-05-02T00:00:00Z",
  "to":"2026-05-01T00:00:00Z"
POST /dead-letters/bulk 404 tenant_not_found {"action":"retry","filter":{"tenantId":"{nobody}"}}
GET /dead-letters/groups?tenantId=x 404 tenant_not_found
GET /dead-letters/bulk 404 not_found
`

// badReplays are replays and rewinds, and reads of operators that lack a tenant.
const badReplays = `
POST /replays 400 member_missing {"topic":"usage.raw"}
POST /replays 400 reason_required {"topic":"usage.raw","reason":" ","fromTime":"2026-05-01T00:00:00Z"}
POST /replays 400 topic_invalid {"topic":"§","reason":"x","from":"1-1","to":"1-1"} § usage.commands | nothing
POST /replays 400 range_invalid {"topic":"usage.raw","reason":"x"§} §  | ,"from":"1-1" | ,"from":"1-2","to":"1-1" | ,"from":"1-1",
  "to":"2-1" | ,"from":"1-0","to":"1-1" | ,"from":"1-99999","to":"1-99999" | ,"fromTime":"2026-05-01T00:00:00Z",
  "toTime":"2026-05-01T00:00:00Z"
POST /replays 400 range_invalid {"topic":"usage.raw","reason":"x","from":"{elsewhere}-1","to":"{elsewhere}-1","tenantId":"{tenant}"}
POST /replays 400 position_invalid {"topic":"usage.raw","reason":"x","from":"§","to":"1-1"} § 32-1 | 01-1
POST /replays 400 time_invalid {"topic":"usage.raw","reason":"x","fromTime":"2026-05-01T00:00:00"}
POST /replays 404 tenant_not_found {"topic":"usage.raw","reason":"x","fromTime":"2026-05-01T00:00:00Z","tenantId":"{nobody}"}
GET /replays/{nobody} 404 replay_not_found
POST /replays/rewind 400 to_invalid {"reason":"x",§} § "to":"end" | "to":"consumers" | "to":"2026-05-01" | "to":"start","positions":["1-1"] |
  "consumer":"meterplex-usage-aggregator" | "consumer":"meterplex-usage-aggregator","to":"consumers"
POST /replays/rewind 400 positions_invalid {"reason":"x","positions":§} § [] | ["1-1","1-2"] | ["1-0"] | ["1-999"],
  "consumer":"meterplex-usage-aggregator" | ["1-1"],"consumer":"meterplex-usage-commands"
POST /replays/rewind 400 position_invalid {"reason":"x","positions":["x"]}
POST /replays/rewind 404 consumer_not_found {"reason":"x","consumer":"meterplex-entitlement-reads","to":"start"}
POST /replays/rewind 409 rewind_forward {"reason":"x","positions":["1-99999"]}
GET /usage/events 400 parameter_missing
GET /usage/aggregates 400 parameter_missing
GET /usage?{day} 400 parameter_missing
GET /events?stream=usage/e 400 parameter_missing
GET /quota/accounts 400 parameter_missing
GET /usage/aggregates?period=2026-05&minPosition=17-1 400 parameter_invalid
GET /events/stream?after=3-1 400 position_invalid
`

// badTenants are tenants, keys, subscriptions, webhooks and thresholds that cannot be made or found.
const badTenants = `
GET /tenants/§ 404 tenant_not_found § x | 00000000-0000-0000-0000-000000000000 | urn:uuid:{tenant} | %7B{tenant}%7D |
  {nobody}/subscriptions
GET /tenants/{nobody}/api-keys 404 tenant_not_found
GET /tenants?q=a&q=b 400 duplicate_parameter
POST /tenants 400 member_missing {"name":"x"}
POST /tenants 400 name_invalid {"name":§,"class":"small"} § "" | " " | null | "a\nb" | "<é201>"
POST /tenants 400 external_ids_invalid {"externalIds":§,"name":"x","class":"small"} § [5] | [null] | [[]] | [""] | ["a b"] |
  ["a\u0000"] | ["é"] | ["a","b","a"] | ["<x256>"] | ["{17}"]
POST /tenants 409 external_id_taken {"externalIds":["free","taken"],"name":"x","class":"small"}
POST /tenants 400 metadata_invalid {"metadata":§,"name":"x","class":"small"} § {"k":5} | {"k":null} | {"k":{}} | {"":"v"} |
  {"a\u0000":"v"} | {"k":"a\nb"} | {"<k65>":"v"} | {"k":"<é501>"} | {{51}}
POST /tenants 400 data_residency_invalid {"dataResidency":§,"name":"x","class":"small"} § "" | "EU" | "1a" | "a b" | "<a33>" | "ä"
PATCH /tenants/{tenant} 400 external_ids_invalid {"externalIds":["a","b","a"]}
PATCH /tenants/{tenant} 409 external_id_taken {"externalIds":["free","taken"]}
PATCH /tenants/{tenant} 400 metadata_invalid {"metadata":{"<k65>":"v"}}
PATCH /tenants/{tenant} 400 data_residency_invalid {"dataResidency":"1a"}
PATCH /tenants/{tenant} 400 close_after_hours_invalid {"closeAfterHours":§} § 0 | 8785
PATCH /tenants/{tenant} 400 status_invalid {"status":"DELETED"}
PATCH /tenants/{nobody} 404 tenant_not_found {"name":"x"}
POST /tenants/{tenant}/api-keys 400 scopes_invalid {"name":"x","scopes":§} § [] | ["usage:read","usage:read"] | ["admin"] |
  ["everything"] | [null]
POST /tenants/{tenant}/api-keys 400 mode_invalid {"name":"x","scopes":["usage:read"],"mode":"op"}
POST /tenants/{tenant}/api-keys 400 expires_at_invalid {"name":"x","scopes":["usage:read"],"expiresAt":§} § "2020-01-01T00:00:00Z" |
  "2999-02-30T00:00:00Z" | "2999-01-01" | 32503680000
POST /tenants/{tenant}/portal-links 400 expires_in_seconds_invalid {"expiresInSeconds":§} § 59 | 86401 | -1 | 1e3 | "900"
POST /tenants/{nobody}/portal-links 404 tenant_not_found {}
POST /tenants/{tenant}/api-keys/{key}/rotate 400 overlap_seconds_invalid {"overlapSeconds":§} § -1 | 1e3 | 2592001 | null
POST /tenants/{tenant}/api-keys/{nobody}/rotate 404 key_not_found {"overlapSeconds":0}
DELETE /tenants/{nobody}/api-keys/{key} 404 key_not_found
POST /operator-keys 400 scopes_invalid {"name":"x","scopes":["usage:read"]}
DELETE /operator-keys/{key} 404 key_not_found
GET /tenants/{tenant}/subscriptions/{nobody} 404 subscription_not_found
POST /tenants/{tenant}/subscriptions 404 plan_not_found {"plan":"nothing"}
POST /tenants/{tenant}/subscriptions 409 subscription_exists {"plan":"basic"}
POST /tenants/{tenant}/subscriptions 400 starts_at_invalid {"plan":"basic","startsAt":§} § "2026-05-01" | "yesterday" | 1777593600
PATCH /tenants/{tenant}/subscriptions/{subscription} 400 prices_invalid {"prices":§} § "latest" | 2
POST /tenants/{nobody}/subscriptions 404 tenant_not_found {"plan":"basic"}
POST /tenants/{tenant}/webhooks 400 url_invalid {"url":"https://[::ffff:127.0.0.1]","events":["push.failed"]}
POST /tenants/{tenant}/thresholds 400 threshold_invalid {"feature":"api_calls","percent":80,"amount":5}
POST /tenants/{tenant}/thresholds 400 percent_invalid {"percent":§} § 0 | 1001 | 8e1 | 0.5
POST /tenants/{tenant}/thresholds 400 amount_invalid {"amount":0}
POST /tenants/{tenant}/thresholds 404 feature_not_found {"feature":"A","percent":80}
POST /tenants/{tenant}/thresholds 409 not_entitled {"feature":"sso","percent":80}
POST /tenants/{nobody}/thresholds 404 tenant_not_found {"percent":80}
GET /tenants/{tenant}/thresholds/{nobody} 404 threshold_not_found
DELETE /tenants/{tenant}/thresholds/x 404 threshold_not_found
`

// badCatalogue are features, plans and prices that cannot be defined or found, and schemas that do not exist.
const badCatalogue = `
GET /features/..%2Fplans 404 feature_not_found
GET /plans/nothing 404 plan_not_found
GET /prices/nothing 404 price_not_found
PUT /features/§ 400 lookup_key_invalid {"name":"x","type":"QUOTA"} § A | 9 | a%20b | %C3%A9 | <a65>
PUT /features/f 400 group_by_invalid {"name":"x","type":"QUOTA","groupBy":§} § [5] | ["a","b","c"] | ["a","a"] | [""] | ["a b"] |
  ["metadata.é"]
PUT /features/f 400 group_by_invalid {"name":"x","type":"BOOLEAN","groupBy":["a"]}
PUT /features/sso 409 feature_type_fixed {"name":"x","type":"QUOTA"}
PUT /plans/§ 400 plan_key_invalid {"name":"x","entitlements":[]} § _a | a%20b | %C3%A9 | a%2Fb | <a65>
PUT /plans/p 400 entitlements_invalid {"name":"x","entitlements":[§]} § {"feature":"nothing"} | 5 | {"feature":"sso","limit":5} |
  {"feature":"api_calls","onIngest":"enforce"} | {"feature":"api_calls"},{"feature":"api_calls"}
PUT /plans/p 400 member_missing {"name":"x","entitlements":[{}]}
PUT /plans/p 400 limit_invalid {"name":"x","entitlements":[{"feature":"api_calls","limit":§}]} § -1 | 1.0 | "5" | 9007199254740992 | 1e400
PUT /plans/p 400 limit_behavior_invalid {"name":"x","entitlements":[{"feature":"api_calls","limitBehavior":"hard"}]}
PUT /plans/p 400 reset_period_invalid {"name":"x","entitlements":[{"feature":"§","resetPeriod":"DAILY"}]} § api_calls | sso
PUT /plans/p 400 price_invalid {"name":"x","entitlements":[{"feature":§}]} § "api_calls","price":5 | "api_calls","price":"a b" | "sso",
  "price":"nothing"
PUT /plans/p 404 price_not_found {"name":"x","entitlements":[{"feature":"api_calls","price":"nothing"}]}
PUT /plans/p 400 charge_trial_invalid {"name":"x","entitlements":[{"feature":"api_calls","chargeTrial":§}]} § true | "yes"
GET /prices/nothing/versions 404 price_not_found
POST /prices/evaluate 400 price_invalid {"periodKey":"2026-05"§} §  |
  ,"priceKey":"p","feature":"api_calls","price":{"currency":"EUR","model":"flat","microUnits":5}
POST /prices/evaluate 400 feature_invalid {"periodKey":"2026-05","price":{"currency":"EUR","model":"flat","microUnits":5}}
POST /prices/evaluate 400 micro_units_invalid {"periodKey":"2026-05","feature":"api_calls","price":{"currency":"EUR","model":"flat"}}
POST /prices/evaluate 400 period_key_invalid {"periodKey":"2026-13","priceKey":"p"}
POST /prices/evaluate 404 price_not_found {"periodKey":"2026-05","priceKey":"nothing"§} §  | ,"version":9
POST /prices/evaluate 400 position_invalid {"periodKey":"2026-05","priceKey":"p","position":"1-1"§} §  | ,"rebuildId":"{nobody}"
POST /prices/evaluate 404 tenant_not_found {"periodKey":"2026-05","priceKey":"p","tenantId":"{nobody}"}
PUT /prices/§ 400 price_key_invalid {"name":"x","currency":"EUR","model":"flat","microUnits":5} § _a | a%20b | %C3%A9 | a%2Fb | <a65>
PUT /prices/p 400 member_missing {"currency":"EUR",§} § "model":"flat","microUnits":5 | "name":"x","microUnits":5 | "name":"x",
  "model":"volume","tiers":[{}]
PUT /prices/p 400 currency_invalid {"name":"x","currency":"§","model":"flat","microUnits":5} § eur | EURO | EUX
PUT /prices/p 400 micro_units_invalid {"name":"x","currency":"EUR","model":"flat","microUnits":§} § null | -1 | 0.5 | 1e3 | "5" |
  9007199254740992
PUT /prices/p 400 micro_units_invalid {"name":"x","currency":"EUR",§} § "model":"flat" | "model":"graduated",
  "tiers":[{"microUnits":-1}] | "model":"graduated","microUnits":1,"tiers":[{"microUnits":1}]
PUT /prices/p 400 flat_micro_units_invalid {"name":"x","currency":"EUR","model":"graduated","tiers":[{"microUnits":1,
  "flatMicroUnits":-1}]}
PUT /prices/p 400 package_size_invalid {"name":"x","currency":"EUR","microUnits":5,"model":§} § "package" | "package","packageSize":0 |
  "package","packageSize":1.0 | "flat","packageSize":2
PUT /prices/p 400 tiers_invalid {"name":"x","currency":"EUR","model":§} § "flat","microUnits":5,"tiers":[{"microUnits":1}] | "volume" |
  "volume","tiers":[5] | "volume","tiers":[{101}]
PUT /prices/p 400 up_to_invalid {"name":"x","currency":"EUR","model":"graduated","tiers":[§]} § {"upTo":5,"microUnits":1} |
  {"microUnits":1},{"microUnits":1} | {"upTo":"5","microUnits":1},{"microUnits":1} | {"upTo":5,"microUnits":1},{"upTo":5,"microUnits":1},
  {"microUnits":1} | {"upTo":0,"microUnits":1},{"microUnits":1}
GET /schemas/meterplex.usage.event.recorded/V1 404 not_found
GET /schemas/meterplex.usage.event.recorded/v§ 404 schema_not_found § 0 | 01 | -1 | 1x | 99999999999999999999
GET /schemas/..%2Fearlier/v1 404 schema_not_found
BREW /coffee 404 not_found
`

// badPeriods are requests about the closed period {month} of {tenant}, whose adjustment {decided} is decided and {pending} is not;
// {foreign} is another tenant's.
const badPeriods = `
POST /tenants/{tenant}/periods/§/close 400 period_key_invalid {"reason":"r"} § 2026-13 | 2026-00 | 26-05 | 2026-05%20 | 0000 | 0000-01 |
  9999 | 9999-12
POST /tenants/{tenant}/periods/{year}/close 409 period_not_ended {"reason":"r"}
POST /tenants/{tenant}/periods/§/close 409 period_not_closable {"reason":"r","early":true} § lifetime | 2999-01
POST /tenants/{tenant}/periods/{present}/close 409 period_not_ended {"reason":"r"}
POST /tenants/{tenant}/periods/{present}/close 400 despite_invalid {"reason":"r","early":true,"despite":["not_aggregated"]}
POST /tenants/{tenant}/periods/{month}/close 400 reason_required {"reason":" "}
POST /tenants/{tenant}/periods/{month}/reopen 400 reason_required {"reason":" "}
POST /tenants/{tenant}/periods/§/reopen 409 period_not_closed {"reason":"r"} § {present} | lifetime
POST /tenants/{tenant}/periods/2026-13/reopen 400 period_key_invalid {"reason":"r"}
GET /tenants/{tenant}/periods/{month}?snapshot=2 404 snapshot_not_found
GET /tenants/{tenant}/periods/{month}/export?snapshot=9 404 snapshot_not_found
GET /tenants/{tenant}/periods/{month}/charges?snapshot=2 404 snapshot_not_found
GET /tenants/{tenant}/periods/0000/adjustments 400 period_key_invalid
GET /tenants/{tenant}/periods/9999-12/export 400 period_key_invalid
GET /tenants/{tenant}/periods/2026-13/charges 400 period_key_invalid
GET /adjustments?periodKey=2026-13 400 parameter_invalid
POST /adjustments/{decided}/approve 409 adjustment_decided {"reason":"r"}
POST /adjustments/{nobody}/approve 404 adjustment_not_found {"reason":"r"}
POST /adjustments/{pending}/waive 400 reason_required {"reason":" "}
POST /adjustments/decide 400 decision_invalid {§,"reason":"r"} § "ids":["{pending}","{foreign}"],"decision":"approve" |
  "decision":"approve" | "periodKey":"{month}","decision":"approve" | "tenantId":"{tenant}","periodKey":"{month}","decision":"approve" |
  "tenantId":"{tenant}","periodKey":"{month}","upTo":"{position}","decision":"void"
POST /adjustments/decide 400 decision_invalid {"ids":["{pending}"],"tenantId":"{tenant}","periodKey":"{month}","decision":"approve",
  "reason":"r"}
POST /adjustments/decide 400 ids_invalid {"ids":["x"],"decision":"approve","reason":"r"}
POST /adjustments/decide 409 adjustment_decided {"ids":["{pending}","{decided}"],"decision":"approve","reason":"r"}
POST /adjustments/decide 400 period_key_invalid {"tenantId":"{tenant}","periodKey":"2026-13","upTo":"{position}","decision":"approve",
  "reason":"r"}
POST /adjustments/decide 400 reason_required {"tenantId":"{tenant}","periodKey":"{month}","upTo":"{position}","decision":"approve",
  "reason":" "}
POST /adjustments/decide 404 tenant_not_found {"tenantId":"{nobody}","periodKey":"{month}","upTo":"{position}","decision":"approve",
  "reason":"r"}
`

// badRebuilds are requests about the rebuild {rebuild}, which is ready.
const badRebuilds = `
POST /projections/nothing/rebuilds 404 projection_not_found {"reason":"r"}
POST /projections/nothing/verify 404 projection_not_found {"reason":"r"}
POST /projections/usage_aggregates/rebuilds 400 member_missing {}
POST /projections/usage_aggregates/rebuilds 400 reason_required {"reason":" "}
POST /projections/usage_aggregates/rebuilds 400 reason_invalid {"reason":"<r501>"}
POST /projections/usage_aggregates/rebuilds 400 period_key_invalid {"reason":"r","periodKey":"2026-13"}
POST /projections/entitlement_reads/rebuilds 400 scope_invalid {"reason":"r","periodKey":"2026-05"}
POST /projections/usage_aggregates/rebuilds 400 workers_invalid {"reason":"r","workers":§} § 0 | 33
POST /projections/usage_aggregates/rebuilds 404 tenant_not_found {"reason":"r","tenantId":"{nobody}"}
POST /rebuilds/{rebuild}/promote 400 member_missing {}
POST /rebuilds/{nobody}/§ 404 rebuild_not_found {"reason":"r"} § promote | abandon | rollback
GET /rebuilds/x 404 rebuild_not_found
GET /rebuilds/{nobody}/events 404 rebuild_not_found
GET /rebuilds/{nobody}/diff?format=csv 404 rebuild_not_found
GET /rebuilds/{nobody}/diff/events?tenantId={nobody}&feature=storage&periodKey=2026-05 404 rebuild_not_found
GET /rebuilds/{rebuild}/diff?format=csv&limit=5 400 parameter_invalid
GET /rebuilds/{rebuild}/diff/events?tenantId=x&periodKey=2026-05 400 parameter_missing
GET /rebuilds/{rebuild}/diff/events?subscriptionId=x&tenantId={nobody}&feature=storage&periodKey=2026-05 400 parameter_invalid
`
