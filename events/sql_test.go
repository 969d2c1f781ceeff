package events

import "testing"

func TestSQLNamesTopicsAndSubjects(t *testing.T) {
	const named = `SELECT '{}', topic_positions[{usage.validated}] WHERE topic = {usage.dead-letter} AND subject IN ({usage.event.recorded}, ` +
		`{dead_letters.dead_letter.closed}) AND x = '{1,2}'`
	const numbers = `SELECT '{}', topic_positions[2] WHERE topic = 3 AND subject IN (1, 15) AND x = '{1,2}'`
	if got := SQL(named); got != numbers {
		t.Errorf("%s", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("an unknown name is accepted")
		}
	}()
	SQL(`WHERE subject = {usage.event.unknown}`)
}
