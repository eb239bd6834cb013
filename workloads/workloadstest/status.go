package workloadstest

import (
	"fmt"
	"strings"

	"berth/workloads"
	"berth/workloads/validation"
)

// checkStatus panics if the API would reject a status that a controller writes: it would decide the same again, and
// the object would never change.
func (s *Server) checkStatus(next workloads.Object) {
	stored, found := s.objects[KeyOf(next)]
	if !found || stored.GetResourceVersion() != next.GetResourceVersion() {
		return // the write fails anyway
	}
	for _, kind := range validation.Kinds() {
		if kind.Kind != KeyOf(next).Kind {
			continue
		}
		updated := clone(stored)
		field(updated, "Status").Set(field(clone(next), "Status"))
		rules, _ := validation.RulesFor(kind)
		for _, err := range rules.ValidateStatus(updated, clone(stored)) {
			if strings.HasPrefix(err.Field, "status") {
				panic(fmt.Sprintf("%s: invalid status: %v\nstored: %+v\nwritten: %+v", KeyOf(next), err,
					field(stored, "Status"), field(next, "Status")))
			}
		}
	}
}
