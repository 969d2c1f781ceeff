package commands

import "time"

// Instance is an instance of the service, as it last reported.
type Instance struct {
	ID        string
	Version   string
	Roles     []string
	State     string // RUNNING; LOST: it does not report; ENDED: it was stopped
	StartedAt time.Time
	SeenAt    time.Time
	EndedAt   *time.Time
}
