package cgroups

import "path/filepath"

// PodsMemory is what all pods use of memory, in bytes.
type PodsMemory struct {
	WorkingSet     uint64    // without file pages that nobody used lately
	NonReclaimable uint64    // without any file pages: what cannot be had back but by ending something
	Limit          uint64    // 0: any amount
	PSI            *PSIStats // of memory; nil: this kernel or hierarchy does not tell
}

// PodsMemory reads the cgroup that all pods are in; zero where there is none yet.
func (c *Cgroups) PodsMemory() (t PodsMemory) {
	dir := c.layout.dir(c.layout.tier(""))
	for _, h := range c.hierarchies {
		at := filepath.Join(h.mount, dir)
		switch {
		case !exists(at):
		case h.unified:
			if s := stallsOf(at); s != nil {
				t.PSI = &s.Memory
			}
			if c.v2 {
				t.set(number(at, "memory.current"), table(at, "memory.stat"), "")
			}
		case h.has("memory"):
			t.set(number(at, "memory.usage_in_bytes"), table(at, "memory.stat"), "total_")
		}
	}
	if t.Limit = c.memoryLimit(dir); t.Limit >= 1<<62 {
		t.Limit = 0 // as much as there can be
	}
	return t
}

func (t *PodsMemory) set(used uint64, stat map[string]uint64, prefix string) {
	inactive, active := stat[prefix+"inactive_file"], stat[prefix+"active_file"]
	t.WorkingSet = used - min(inactive, used)
	t.NonReclaimable = used - min(inactive+active, used)
}
