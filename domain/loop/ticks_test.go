package loop

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestLoopsComeToLookAtTheSameMoments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		every := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "every"))
		at := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "at"))
		for range 4 {
			wait := until(at, every)
			if wait < every/2 || wait > every {
				t.Fatalf("at %s a loop waits for %s of %s", at, wait, every)
			}
			at += wait
		}
		for range 3 {
			if at%every != 0 {
				t.Fatalf("a loop looks %s after a shared moment", at%every)
			}
			at += time.Duration(rapid.Int64Range(0, int64(every/2)).Draw(t, "look"))
			at += until(at, every)
		}
	})
}

func TestLoopsWithoutSharedMomentsWaitForTheirInterval(t *testing.T) {
	if wait := (Ticks{}).Until(time.Second); wait != time.Second {
		t.Errorf("a loop waits for %s", wait)
	}
	if wait := BeginTicks().Until(time.Hour); wait > time.Hour || wait < 59*time.Minute {
		t.Errorf("a loop waits for %s of an hour", wait)
	}
}
