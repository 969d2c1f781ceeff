package intake

import (
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
)

// readList reads a body of one member, an array, which read reads. invalid is the fault of another value. Of several faults it
// returns the first in this order: malformed_json, unknown_member, member_missing, invalid.
func (d *decoder) readList(member string, invalid *domain.Error, read func()) *domain.Error {
	in := &d.in
	if in.Peek() != '{' {
		in.Fail(`the body must be an object: {"` + member + `":[…]}`)
		return refused(in.Fault)
	}
	found, isArray, unknown := false, false, text{}
	base, _ := in.Enter()
	for {
		name, more := in.Member(base)
		if !more {
			break
		}
		switch {
		case string(name) == member:
			if found, isArray = true, in.Peek() == '['; isArray {
				read()
				continue
			}
		case !unknown.sent:
			unknown = text{sent: true, chars: name}
		}
		in.Value()
	}
	if in.Fault == nil {
		in.End()
	}
	switch {
	case in.Fault != nil:
		return refused(in.Fault)
	case unknown.sent:
		return &domain.Error{Code: "unknown_member", Pointer: pointerTo(unknown.chars),
			Message: "the member " + strictjson.Quote(unknown.chars) + ` is not known here; the body has only "` + member + `"`}
	case !found:
		return &domain.Error{Code: "member_missing", Pointer: "/" + member, Message: member + " is missing; it is required"}
	case !isArray:
		return invalid
	}
	return nil
}
