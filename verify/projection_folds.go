package verify

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// projectionFolds has the service compare each projection with a new fold of the log.
func projectionFolds(svc Service) ([]Check, error) {
	all, err := svc.Projections()
	if err != nil {
		return []Check{{Name: "P5 the projections equal the log, computed again", Looked: true, Needs: "http", Figures: err.Error()}}, nil
	}
	var checks []Check
	for _, raw := range all {
		var p struct{ Name string }
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, fmt.Errorf("read a projection: %w", err)
		}
		checks = append(checks, projectionFold(svc, p.Name))
	}
	return checks, nil
}

func projectionFold(svc Service, name string) Check {
	found := Check{Name: "P5 " + name + " equals the log, computed again", Looked: true, Needs: "http"}
	v, err := svc.VerifyProjection(name)
	switch {
	case err != nil:
		found.Figures = err.Error()
	case v.Differs == nil:
		found.Figures = "the verify " + v.RebuildID + " ended " + v.State + ": " + v.Failure
	default:
		holds := *v.Differs == 0
		found.Holds, found.Figures = &holds, strconv.FormatInt(*v.Differs, 10)+" keys differ (rebuild "+v.RebuildID+")"
	}
	return found
}
