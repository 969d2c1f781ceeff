package strictjson

import (
	"strconv"
	"unicode/utf8"
)

// maxEcho bounds the input that an error repeats: enough to find the place, too
// little to make a response large or to misuse a log line as a channel.
const maxEcho = 64

// Quote renders input for a message: printable, on one line, cut to maxEcho
// characters.
func Quote(b []byte) string {
	cut := Clip(b)
	q := strconv.Quote(string(cut))
	if len(cut) < len(b) {
		q += "…"
	}
	return q
}

// Clip returns the longest prefix of b with at most maxEcho characters.
func Clip(b []byte) []byte {
	end := 0
	for n := 0; n < maxEcho && end < len(b); n++ {
		_, size := utf8.DecodeRune(b[end:])
		end += size
	}
	return b[:end]
}
