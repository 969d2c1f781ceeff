package commands

import "time"

// Instance is an instance of the service, as it last reported.
type Instance struct {
	ID        string     `json:"id" doc:"Its name in leases and logs." example:"host-4711-a1b2c3"`
	Version   string     `json:"version" doc:"Its release."`
	Roles     []string   `json:"roles" nullable:"false" doc:"Its roles."`
	State     string     `json:"state" enum:"RUNNING,LOST,ENDED" doc:"LOST: it was killed, or its database connections fail."`
	StartedAt time.Time  `json:"startedAt" doc:"Its first report."`
	SeenAt    time.Time  `json:"seenAt" doc:"Its last report."`
	EndedAt   *time.Time `json:"endedAt" doc:"When it was stopped; null: it was not."`
}
