package handover

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Checkpoints of the kubelet in its root directory.
const (
	allocatedPods  = "allocated_pods_state"
	actuatedPods   = "actuated_pods_state"
	cpuManager     = "cpu_manager_state"
	memoryManager  = "memory_manager_state"
	deviceManager  = "device-plugins/kubelet_internal_checkpoint"
	resourceClaims = "dra_manager_state"
)

// checkpointNames are the checkpoints that Read reads.
var checkpointNames = []string{
	allocatedPods, actuatedPods, cpuManager, memoryManager, deviceManager, resourceClaims,
}

// checkpointRows rejects checkpoints with assignments that berth cannot continue. All other
// checkpoints stay where they are and are valid for the kubelet after a handback.
func (f Facts) checkpointRows() (rows []Row) {
	for _, name := range checkpointNames {
		content, exists := f.Checkpoints[name]
		if !exists {
			continue
		}
		var found []Row
		var err error
		switch name {
		case allocatedPods:
			found, err = f.resizes(content, f.Checkpoints[actuatedPods])
		case actuatedPods:
			_, err = parseAllocations(content)
		case cpuManager:
			found, err = f.exclusiveCPUs(content)
		case memoryManager:
			found, err = f.memoryBlocks(content)
		case deviceManager:
			found, err = f.devices(content)
		case resourceClaims:
			found, err = f.claims(content)
		}
		switch {
		case err != nil:
			rows = append(rows, Row{Subject: name, Verdict: Rejected, Note: "unknown format: " + err.Error()})
		case len(found) == 0:
			rows = append(rows, Row{Subject: name, Verdict: Supported, Note: "nothing to convert; the file is kept"})
		}
		rows = append(rows, found...)
	}
	return rows
}

// resizes rejects pods whose allocated amounts have not been applied to the containers, or differ from those of
// the API server, because the kubelet has not seen a change yet. berth takes the amounts of the spec for those
// of an adopted container.
func (f Facts) resizes(allocated, actuated string) (rows []Row, err error) {
	before, err := parseAllocations(allocated)
	if err != nil {
		return nil, err
	}
	after, err := parseAllocations(actuated)
	if err != nil {
		return nil, err
	}
	for _, uid := range sortedKeys(before) {
		p := f.pod(uid)
		fields := before[uid].unappliedFields(p, after[uid])
		if p != nil && !isFinished(p) {
			fields = append(fields, before[uid].changedFields(p)...)
		}
		slices.Sort(fields)
		for _, field := range slices.Compact(fields) {
			rows = append(rows, Row{Subject: field, Pod: f.podName(uid), Value: allocatedPods, Verdict: Rejected,
				Note: "a resize is in progress; wait until it is complete"})
		}
	}
	return rows, nil
}

// managerState is the common part of the checkpoints of the CPU manager and the memory manager.
type managerState struct {
	PolicyName string                       `json:"policyName"`
	Entries    map[types.UID]map[string]any `json:"entries"`    // by pod and container
	PodEntries map[types.UID]any            `json:"podEntries"` // of pods as a whole
	Data       string                       `json:"data"`       // newer format
}

func parseManagerState(content string) (s managerState, err error) {
	if err = json.Unmarshal([]byte(content), &s); err == nil && s.Data != "" {
		err = json.Unmarshal([]byte(s.Data), &s)
	}
	return s, err
}

func (f Facts) exclusiveCPUs(content string) (rows []Row, err error) {
	return f.assignments(cpuManager, content, "cpu", "the pod has exclusive CPUs, which berth does not assign")
}

func (f Facts) memoryBlocks(content string) (rows []Row, err error) {
	return f.assignments(memoryManager, content, "memory",
		"the pod has memory of a NUMA node, which berth does not assign")
}

// assignments rejects pods with assignments of a manager for a resource.
func (f Facts) assignments(name, content, resource, note string) (rows []Row, err error) {
	s, err := parseManagerState(content)
	if err != nil {
		return nil, err
	}
	add := func(uid types.UID, field string) {
		rows = append(rows, Row{Subject: field + ".resources.requests[" + resource + "]", Pod: f.podName(uid),
			Value: name + ", policy " + s.PolicyName, Verdict: Rejected, Note: note + "; drain the pod first"})
	}
	for _, uid := range sortedKeys(s.Entries) {
		for _, container := range sortedKeys(s.Entries[uid]) {
			add(uid, containerField(f.pod(uid), container))
		}
	}
	for _, uid := range sortedKeys(s.PodEntries) {
		add(uid, "spec")
	}
	return rows, nil
}

// devices rejects pods with devices of a device plugin.
func (f Facts) devices(content string) (rows []Row, err error) {
	var s struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID                      types.UID
				ContainerName, ResourceName string
			}
		}
	}
	if err := json.Unmarshal([]byte(content), &s); err != nil {
		return nil, err
	}
	for _, e := range s.Data.PodDeviceEntries {
		rows = append(rows, Row{
			Subject: containerField(f.pod(e.PodUID), e.ContainerName) + ".resources.limits[" + e.ResourceName + "]",
			Pod:     f.podName(e.PodUID), Value: deviceManager, Verdict: Rejected,
			Note: "allocations of the device manager are not converted; drain the pod first",
		})
	}
	return rows, nil
}

// claims rejects pods with prepared resource claims.
func (f Facts) claims(content string) (rows []Row, err error) {
	var outer struct{ Data string }
	var inner struct {
		ClaimInfoStateList []struct {
			ClaimName, Namespace string
			PodUIDs              map[types.UID]any
		}
	}
	if err := json.Unmarshal([]byte(content), &outer); err != nil {
		return nil, err
	}
	if strings.TrimSpace(outer.Data) == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(outer.Data), &inner); err != nil {
		return nil, err
	}
	for _, c := range inner.ClaimInfoStateList {
		pods := sortedKeys(c.PodUIDs)
		if len(pods) == 0 {
			pods = []types.UID{""}
		}
		for _, uid := range pods {
			rows = append(rows, Row{Subject: "spec.resourceClaims", Pod: f.podName(uid),
				Value: c.Namespace + "/" + c.ClaimName, Verdict: Rejected, Note: "resource claims are not supported"})
		}
	}
	return rows, nil
}
