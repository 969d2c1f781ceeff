package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"strconv"
	"time"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

func passes(e *exchange) { e.reply(e.forward()) }

// cutsBefore ends the connection before it reads the request.
func cutsBefore(e *exchange) { e.cut() }

// cutsWithin ends the connection within the request.
func cutsWithin(e *exchange) {
	_, _ = io.ReadFull(e.r.Body, make([]byte, 10))
	e.cut()
}

// cutsBehind ends the connection when it has the request, and forwards nothing.
func cutsBehind(e *exchange) {
	e.read()
	e.cut()
}

// losesAnswer lets the service execute the request, and ends the connection.
func losesAnswer(e *exchange) {
	e.forward()
	e.cut()
}

// cutsAnswer lets the service execute the request, and ends the connection within the answer.
func cutsAnswer(e *exchange) {
	a := e.forward()
	e.w.Header().Set("Content-Type", a.header.Get("Content-Type"))
	e.w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	e.w.WriteHeader(a.status)
	_, _ = e.w.Write(a.body[:len(a.body)/2])
	_ = http.NewResponseController(e.w).Flush()
	e.cut()
}

// isSilent reads the request and never answers, as a connection whose other end is gone.
func isSilent(e *exchange) {
	e.read()
	select {
	case <-e.p.closed:
	case <-e.r.Context().Done():
	}
	e.cut()
}

// delays answers later.
func delays(d time.Duration) fault {
	return func(e *exchange) {
		a := e.forward()
		time.Sleep(d)
		e.reply(a)
	}
}

// says answers in place of the service.
func says(status int, mediaType, body string, header ...string) fault {
	return func(e *exchange) {
		e.read()
		e.reply(written(status, mediaType, body, header...))
	}
}

func written(status int, mediaType, body string, header ...string) answer {
	a := answer{status, http.Header{}, []byte(body)}
	if mediaType != "" {
		a.header.Set("Content-Type", mediaType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		a.header.Set(header[i], header[i+1])
	}
	return a
}

// problem is the answer of the service to a request that it refuses.
func problem(status int, code string) (int, string, string) {
	return status, "application/problem+json",
		fmt.Sprintf(`{"type":"/docs#%s","title":"refused","status":%d,"detail":"by the proxy","code":%q}`, code, status, code)
}

func refuses(status int, code string) fault { return says(problem(status, code)) }

// changes lets the service execute the request, and changes its answer.
func changes(change func(body object)) fault {
	return func(e *exchange) {
		a := e.forward()
		var body object
		if err := json.Unmarshal(a.body, &body); err != nil {
			e.p.t.Errorf("the service answers %d %s", a.status, a.body)
		}
		change(body)
		a.body, _ = json.Marshal(body)
		e.reply(a)
	}
}

// claims answers, in place of the service, that events are accepted: those that it makes of the ids of the batch.
func claims(status int, mediaType string, of func(ids []string) []string) fault {
	return func(e *exchange) {
		e.read()
		list := []object{}
		for i, id := range of(e.seen.ids()) {
			list = append(list, object{"index": i, "eventId": id, "status": "accepted", "position": fmt.Sprint("1-", i+1)})
		}
		body, _ := json.Marshal(object{"accepted": len(list), "duplicates": 0, "conflicts": 0, "rejected": 0, "events": list})
		e.reply(written(status, mediaType, string(body)))
	}
}

func same(ids []string) []string { return ids }

// refusesEvents refuses each batch that holds one of some events, as a service that cannot read it.
func refusesEvents(status int, code string, ids ...string) fault {
	return func(e *exchange) {
		e.read()
		for _, id := range e.seen.ids() {
			if slices.Contains(ids, id) {
				e.reply(written(problem(status, code)))
				return
			}
		}
		passes(e)
	}
}

// endless answers 202 with a body that does not end.
func endless(e *exchange) {
	e.read()
	e.w.Header().Set("Content-Type", "application/json")
	e.w.WriteHeader(http.StatusAccepted)
	for piece := make([]byte, 1<<20); ; {
		for i := range piece {
			piece[i] = ' '
		}
		if _, err := e.w.Write(piece); err != nil {
			e.cut()
		}
	}
}
