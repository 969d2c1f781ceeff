package app

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tags are tags of kong, and reads read texts, by input.
type (
	Tags  = map[string]string
	Reads = map[string]func(string) (any, error)
)

// ReadFile returns the JSON of a file.
func ReadFile(name string) (any, error) {
	text, err := os.ReadFile(name)
	if err == nil && !json.Valid(text) {
		err = fmt.Errorf("%s is not JSON", name)
	}
	return json.RawMessage(text), err
}

// Seconds reads a time in whole seconds, at least so many: 300, or 5m. The service validates the bounds.
func Seconds(least int64) func(text string) (any, error) {
	return func(text string) (any, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			var d time.Duration
			if d, err = time.ParseDuration(text); d%time.Second != 0 {
				err = strconv.ErrSyntax
			}
			n = int64(d / time.Second)
		}
		if err != nil || n < least {
			return nil, fmt.Errorf("%q: write seconds, or a duration of whole seconds, e.g. 300 or 5m", text)
		}
		return n, nil
	}
}
