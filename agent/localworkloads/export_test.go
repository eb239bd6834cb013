package localworkloads

// Empty reports whether there are no workloads.
func (e *Engine) Empty() bool { return len(e.store.entries) == 0 }
