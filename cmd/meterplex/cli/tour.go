package cli

import (
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/tour"
)

// TourCmd groups the tour commands.
type TourCmd struct {
	Bugfix TourBugfix `cmd:"" help:"Repair faulty figures while readers go on: rebuild, diff, promote, roll back."`
}

// TourBugfix shows a rebuild from end to end.
type TourBugfix struct {
	DataDir string `type:"path" placeholder:"DIR" help:"The folder of the servers' data; a temporary one if not given."`
}

// Help returns the long help text.
func (TourBugfix) Help() string {
	return `Starts a PostgreSQL and a Kafka of its own, lets traffic run against a release that adds usage up wrongly, deploys the
release that fixes it, rebuilds the figures beside the live ones, shows the difference and its events, promotes, rolls back and
promotes again. Four readers read the figures all the while: no read may fail, and no read may see figures of both. Each step
prints the command that it runs. Exit code 0: all of this held.`
}

// Run runs the tour.
func (c *TourBugfix) Run(p *program) error {
	given, _, err := p.Config()
	if err != nil {
		return err
	}
	revision, _ := buildCommit(p.commit)
	t := tour.Tour{
		Given: given, DataDir: c.DataDir, Commit: revision, NewClient: p.ClientFor, Now: p.Now, Stdout: p.Stdout, Stderr: p.Stderr,
		Command: func(env config.Lookup, args []string) int {
			inner := *p.App
			inner.Env = env
			return (&program{App: &inner, commit: p.commit, service: p.service}).run(args)
		},
	}
	return t.Run(p.Ctx)
}
