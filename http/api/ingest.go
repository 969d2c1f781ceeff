package api

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

const MediaJSON = "application/json"

// JsonType is the header of answers in JSON: net/http does not write to it.
var JsonType = []string{MediaJSON}

// AdmitBacklog refuses ingest while too many events wait to be published.
func (s *Service) AdmitBacklog() *problem.Problem {
	if s.Backlog == nil {
		return nil
	}
	if waiting, bound := s.Backlog(); waiting > bound {
		return problem.New("backlog_full", "Too many events wait to be published; no event of the batch was stored, retry later")
	}
	return nil
}

// ReadReplay reads the Meterplex-Replay header, which a client sends with events that it
// queued during an outage. It is stored in the envelope's metadata, never in the payload.
func ReadReplay(x *edge.Exchange, values []string) *problem.Problem {
	if len(values) == 0 {
		return nil
	}
	if len(values) > 1 || values[0] != "offline" {
		return problem.New("header_invalid", `Meterplex-Replay may only be "offline"`)
	}
	x.Caller.Replay = values[0]
	return nil
}

// RateHeaders documents the headers of requests that count events.
func RateHeaders() map[string]*huma.Param {
	text := &huma.Schema{Type: huma.TypeString}
	return map[string]*huma.Param{
		"RateLimit":        {Schema: text, Description: "The rest of the tenant's rate."},
		"RateLimit-Policy": {Schema: text, Description: "The tenant's rate."},
	}
}
