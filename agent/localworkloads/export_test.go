package localworkloads

// Empty reports whether there are no workloads.
func (e *Reconciler) Empty() bool { return len(e.store.entries) == 0 }
