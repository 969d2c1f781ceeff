package events

import (
	"regexp"
	"strconv"
)

var sqlNames = regexp.MustCompile(`\{[a-z_.-]+\}`)

// SQL replaces names in braces in a statement by their numbers in the log: a topic's name, as
// {usage.raw}, or the type of a
// subject's first version without "meterplex.", as {usage.event.recorded}.
// It panics on an unknown name: a statement is a constant of the program.
func SQL(statement string) string {
	return sqlNames.ReplaceAllStringFunc(statement, func(braced string) string {
		name := braced[1 : len(braced)-1]
		if topic, ok := TopicOf(name); ok {
			return strconv.Itoa(int(topic))
		}
		if subject, ok := SubjectOf("meterplex."+name, 1); ok {
			return strconv.Itoa(int(subject))
		}
		panic("events: neither a topic nor a subject is named " + braced)
	})
}
