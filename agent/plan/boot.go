package plan

import "maps"

// AfterBoot is what a pod that a shutdown of its node has ended goes on with after
// the boot: a new round of all containers (see Renewal) in a new sandbox, whatever
// they came to when they were told to end.
func AfterBoot(m Memory) Memory {
	from := make(map[string]uint32, len(m.Restarts))
	restarts := make(map[string]Restart, len(m.Restarts))
	for name, r := range m.Restarts {
		restarts[name] = Restart{Next: r.Next}
		if r.Next > 0 {
			from[name] = r.Next
		}
	}
	return Memory{Started: m.Started, Restarts: restarts, Exits: maps.Clone(m.Exits), Renewal: Renewal{From: from}}
}
