package repair

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// following holds the flags of a rebuild that is waited for.
type following struct {
	Wait     bool   `default:"true" negatable:"" help:"Wait until it is READY (default)."`
	Progress string `enum:"bar,lines,json," default:"" placeholder:"FORM" help:"bar, lines or json; default: a bar on a terminal, else lines."`
}

// startRebuild waits until the rebuild is READY or has failed, which is exit code 1.
func startRebuild(a *app.App, l *app.Call) error {
	c := app.FlagOf[following](l, "Own")
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	var r rebuildState
	if err := json.Unmarshal(raw, &r); err != nil || r.ID == "" {
		return fmt.Errorf("the answer is no rebuild: %s", raw)
	}
	if !c.Wait {
		return printRebuild(a, raw)
	}
	if raw, err = follow(a, cl, r.ID, newProgress(a, c.Progress), func(s string) bool { return !isFolding(s) }); err != nil {
		if a.Ctx.Err() != nil {
			a.Report("The rebuild goes on: meterplex projections status %s", r.ID)
		}
		return err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("read a rebuild: %w", err)
	}
	if c.Progress != "json" { // with json, the last progress line is the rebuild
		if err := printRebuild(a, raw); err != nil {
			return err
		}
	}
	if r.State == "READY" || r.State == "PROMOTED" || r.State == "ROLLED_BACK" {
		a.Report("It is ready. Its changes: meterplex projections diff %s", r.ID)
		return nil
	}
	a.Report("It is %s. %s", r.State, output.Printable(r.Failure))
	return app.ErrNo
}

// rebuildState holds the fields of a rebuild that the client uses.
type rebuildState struct {
	ID         string
	Projection string
	State      string
	Failure    string
	Progress   *struct {
		EventsDone, EventsTotal int64
		EventsPerSecond         float64
		EtaSeconds              *float64
		Converges               bool
		Note                    string
	}
}

func isFolding(state string) bool { return state == "FOLDING" || state == "CATCHING_UP" }

// ended reports whether a verify is over.
func ended(state string) bool { return !isFolding(state) && state != "READY" }

// followEvery is how often a rebuild is polled.
const followEvery = 500 * time.Millisecond

// follow polls a rebuild and shows its progress until until accepts its state.
func follow(a *app.App, cl *client.Client, id string, p *progress, until func(state string) bool) (json.RawMessage, error) {
	defer p.finish()
	for {
		raw, err := cl.Get(a.Ctx, client.Path("rebuilds", id), nil)
		if err != nil {
			return nil, err
		}
		var r rebuildState
		if err := json.Unmarshal(raw, &r); err != nil || r.State == "" {
			return nil, fmt.Errorf("the answer is no rebuild: %s", raw)
		}
		if err := p.Show(&r, raw); err != nil || until(r.State) {
			return raw, err
		}
		select {
		case <-a.Ctx.Done():
			return nil, a.Ctx.Err()
		case <-time.After(followEvery):
		}
	}
}

// progress shows the progress of a rebuild.
type progress struct {
	form   string
	bar    *progressbar.ProgressBar
	out    io.Writer // for JSON
	errors io.Writer
	report func(format string, args ...any)
	now    func() time.Time
	last   time.Time
	noted  map[bool]bool // printed notes, by Converges: the figures in the notes change
}

// newProgress returns a progress in the given form; "" chooses one by the terminal.
func newProgress(a *app.App, form string) *progress {
	p := &progress{form: form, out: a.Stdout, errors: a.Stderr, report: a.Report, now: a.Now, last: a.Now(), noted: map[bool]bool{}}
	if form == "" {
		p.form = "lines"
		if output.IsTerminal(a.Stderr) {
			p.form = "bar"
		}
	}
	return p
}

func (p *progress) Show(r *rebuildState, raw json.RawMessage) error {
	if p.form == "json" {
		return output.PrintCompact(p.out, raw)
	}
	if r.Progress == nil {
		return nil
	}
	if r.Progress.Note != "" && !p.noted[r.Progress.Converges] {
		p.noted[r.Progress.Converges] = true
		p.report("%s", output.Printable(r.Progress.Note))
	}
	if p.form == "bar" {
		p.draw(r)
		return nil
	}
	if now := p.now(); now.Sub(p.last) >= output.ProgressEvery {
		p.last = now
		p.report("%s: %s", r.State, progressLine(r))
	}
	return nil
}

// draw updates the bar. The total grows with the log.
func (p *progress) draw(r *rebuildState) {
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(max(r.Progress.EventsTotal, 1), progressbar.OptionSetWriter(p.errors),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(), progressbar.OptionSetItsString("events"), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetDescription("rebuilding"), progressbar.OptionOnCompletion(func() { fmt.Fprintln(p.errors) }))
	}
	p.bar.ChangeMax64(max(r.Progress.EventsTotal, 1))
	_ = p.bar.Set64(r.Progress.EventsDone) // a rebuild is followed even if the bar cannot be drawn
}

func progressLine(r *rebuildState) string {
	g := r.Progress
	line := fmt.Sprintf("%d of %d events (%d %%), %.0f/s", g.EventsDone, g.EventsTotal, 100*g.EventsDone/max(g.EventsTotal, 1),
		g.EventsPerSecond)
	if g.EtaSeconds == nil || g.EventsDone == g.EventsTotal {
		return line
	}
	return line + ", about " + (time.Duration(*g.EtaSeconds * float64(time.Second))).Round(time.Second).String() + " left"
}

func (p *progress) finish() {
	if p.bar != nil && !p.bar.IsFinished() {
		_ = p.bar.Exit()
	}
}
