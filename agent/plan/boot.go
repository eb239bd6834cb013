package plan

import "maps"

// MemoryAfterReboot is what a pod that a shutdown of its node has ended goes on with after
// the boot: a new round of all containers (see Renewal) in a new sandbox, whatever
// they came to when they were told to end.
func MemoryAfterReboot(m Memory) Memory {
	from := make(map[string]uint32, len(m.Restarts))
	restarts := make(map[string]RestartState, len(m.Restarts))
	for name, r := range m.Restarts {
		restarts[name] = RestartState{NextAttempt: r.NextAttempt}
		if r.NextAttempt > 0 {
			from[name] = r.NextAttempt
		}
	}
	return Memory{StartTime: m.StartTime, Restarts: restarts, Exits: maps.Clone(m.Exits), RestartAll: RestartAll{FirstAttempts: from}}
}
