package http_test

import (
	"regexp"
	"strings"
	"testing"
)

var recordedTime = regexp.MustCompile(`"[0-9]{4}-[0-9]{2}-[0-9]{2}T[^"]*"`)

// Times of recorded events are in UTC, whatever the time zone of the process (TestMain sets another): a time that was
// read from the database, such as that of the key that is rotated, is recorded like the others.
func TestRecordedTimesAreInUTC(t *testing.T) {
	w, a := newServiceWithAccount(t)
	tenant := "/api/v1/tenants/" + a.id
	made := w.want(201, call{"POST", tenant + "/api-keys", bootstrap, nil, `{"name":"K","scopes":["usage:read"],"expiresAt":"2099-05-01T02:00:00+02:00"}`})
	key := tenant + "/api-keys/" + made["id"].(string)
	for _, c := range []struct {
		call
		status int
	}{
		{call{"POST", key + "/rotate", bootstrap, nil, `{"overlapSeconds":3600}`}, 201},
		{call{"DELETE", key, bootstrap, nil, nil}, 204},
		{call{"PATCH", tenant, bootstrap, nil, `{"name":"B"}`}, 200},
		{call{"PATCH", tenant + "/subscriptions/" + a.subscription, bootstrap, nil, `{"status":"PAST_DUE"}`}, 200},
	} {
		if got := w.do(c.call); got.status != c.status {
			t.Fatalf("%s %s: %d %s", c.method, c.path, got.status, got.body)
		}
	}
	rows, err := w.pool.Query(t.Context(), `SELECT subject, l.payload::text FROM event_log l`)
	w.must(err)
	defer rows.Close()
	times := 0
	for rows.Next() {
		var subject int
		var payload string
		w.must(rows.Scan(&subject, &payload))
		for _, value := range recordedTime.FindAllString(payload, -1) {
			if times++; !strings.HasSuffix(value, `Z"`) {
				t.Errorf("subject %d records the time %s in %s", subject, value, payload)
			}
		}
	}
	w.must(rows.Err())
	if times < 10 {
		t.Errorf("only %d times were compared", times)
	}
}
