package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	// streamRate is the greatest rate that B4 offers, in events a second: a third above the aim.
	streamRate = 53_000
	// sustainedTrials is how many rates are tried below streamRate. Each trial halves the range.
	sustainedTrials = 5
	// sustainedLag is how much of a trial's load may wait at its end: to be sent, recorded, validated or aggregated.
	sustainedLag = 500 * time.Millisecond
)

// trial is the result of an open-loop load of one rate.
type trial struct {
	offered float64       // events a second
	lag     time.Duration // the load that waited at its end, as time of the load
	drained float64       // events a second until all events were in the aggregates
	refused int
}

// sustained reports whether no backlog grew.
func (t *trial) sustained() bool { return t.refused == 0 && t.lag <= sustainedLag }

func (t *trial) String() string {
	if t.sustained() {
		return fmt.Sprintf("%.0f sustained", t.offered)
	}
	return fmt.Sprintf("%.0f not (%.1f s behind at the end, %.0f events/s until all were applied)", t.offered, t.lag.Seconds(), t.drained)
}

// try offers a rate for a short time, and waits until its events are in the aggregates.
func (r *run) try(ctx context.Context, s *subject, l *load, perSecond float64) (t trial, err error) {
	began := time.Now()
	_, sent, err := openOver(perSecond/streamSize, r.times.trial, streamClients, l.sendOne).run(ctx)
	if err != nil {
		return t, err
	}
	late := max(0, time.Since(began)-r.times.trial)
	var atEnd, last progress
	err = s.pollProgress(ctx, 50*time.Millisecond, func(p progress) bool {
		if atEnd.at.IsZero() {
			atEnd = p
		}
		last = p
		return p.caughtUp()
	})
	if err != nil {
		return t, err
	}
	drained := rate{events: sent.events * streamSize, took: last.at.Sub(began)}
	waiting := time.Duration(float64(atEnd.behind()) / perSecond * float64(time.Second))
	return trial{offered: perSecond, lag: late + waiting, drained: drained.perSecond(), refused: sent.refused}, nil
}

// sustainedRate returns the greatest rate, in events a second, at which no backlog grew, and the trials. Without a sustained trial it
// returns the rate at which the overload of the first trial was worked off.
func sustainedRate(try func(perSecond float64) (trial, error)) (perSecond float64, tried string, err error) {
	first, err := try(streamRate)
	if err != nil || first.sustained() {
		return streamRate, first.String(), err
	}
	all := []string{first.String()}
	low, high := first.drained, min(streamRate, 3*first.drained)
	for range sustainedTrials {
		t, err := try((low + high) / 2)
		if err != nil {
			return 0, "", err
		}
		all = append(all, t.String())
		if t.sustained() {
			low = t.offered
		} else {
			high = t.offered
		}
	}
	return low, strings.Join(all, "; "), nil
}
