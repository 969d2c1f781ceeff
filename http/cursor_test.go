package http

import (
	"errors"
	"testing"

	"github.com/meterplex/meterplex/http/problem"
)

func TestCursorsContainOnlyTheirPlace(t *testing.T) {
	l := list{"usage events", "tenant", "feature"}
	text := *l.next(3, "17-4711")
	if generation, after, err := l.open(text); err != nil || generation != 3 || after != "17-4711" {
		t.Errorf("%d %q %v", generation, after, err)
	}
	if _, _, err := (list{"usage events", "tenant", "other"}).open(text); err == nil {
		t.Error("a cursor of another list is accepted")
	}
	for i := range text {
		for _, c := range []byte{'A', 'x', '=', '\n'} {
			if changed := text[:i] + string(c) + text[i+1:]; changed != text {
				if _, _, err := l.open(changed); err == nil {
					t.Errorf("changed at %d to %q, and taken", i, c)
				}
			}
		}
	}
	var p *problem.Problem
	if _, _, err := l.open("e30"); !errors.As(err, &p) || p.Code != "cursor_invalid" {
		t.Errorf("%v", err)
	}
}
