package handover

import (
	"encoding/json"
	"reflect"
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
			_, err = podResources(content)
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

// podResources returns the resources by pod of allocated_pods_state or actuated_pods_state.
func podResources(content string) (map[types.UID]any, error) {
	var outer struct {
		Data string `json:"data"`
	}
	var inner struct {
		Entries map[types.UID]any `json:"entries"`
	}
	if err := json.Unmarshal([]byte(content), &outer); err != nil {
		return nil, err
	}
	return inner.Entries, json.Unmarshal([]byte(outer.Data), &inner)
}

// resizes rejects pods whose allocated resources have not been applied to the containers.
func (f Facts) resizes(allocated, actuated string) (rows []Row, err error) {
	var before, after map[types.UID]any
	if before, err = podResources(allocated); err != nil {
		return nil, err
	}
	if actuated == "" {
		return nil, nil
	}
	if after, err = podResources(actuated); err != nil {
		return nil, err
	}
	for _, uid := range sortedKeys(before) {
		if now, ok := after[uid]; ok && !reflect.DeepEqual(before[uid], now) {
			rows = append(rows, Row{Subject: allocatedPods, Pod: f.podName(uid), Verdict: Rejected,
				Note: "a resize is in progress; wait until it is complete"})
		}
	}
	return rows, nil
}

// managerState is the common part of the checkpoints of the CPU manager and the memory manager.
type managerState struct {
	PolicyName string            `json:"policyName"`
	Entries    map[types.UID]any `json:"entries"`
	PodEntries map[types.UID]any `json:"podEntries"`
	Data       string            `json:"data"` // of the CPU manager, newer format
}

func parseManagerState(content string) (s managerState, err error) {
	if err = json.Unmarshal([]byte(content), &s); err == nil && s.Data != "" {
		err = json.Unmarshal([]byte(s.Data), &s)
	}
	return s, err
}

func (f Facts) exclusiveCPUs(content string) (rows []Row, err error) {
	return f.assignments(cpuManager, content, "the pod has exclusive CPUs, which berth does not assign")
}

func (f Facts) memoryBlocks(content string) (rows []Row, err error) {
	return f.assignments(memoryManager, content, "the pod has memory of a NUMA node, which berth does not assign")
}

func (f Facts) assignments(name, content, note string) (rows []Row, err error) {
	s, err := parseManagerState(content)
	if err != nil {
		return nil, err
	}
	all := map[types.UID]any{}
	for uid := range s.Entries {
		all[uid] = true
	}
	for uid := range s.PodEntries {
		all[uid] = true
	}
	for _, uid := range sortedKeys(all) {
		rows = append(rows, Row{Subject: name, Pod: f.podName(uid), Value: s.PolicyName, Verdict: Rejected, Note: note})
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
			Subject: deviceManager, Pod: f.podName(e.PodUID), Value: e.ContainerName + ": " + e.ResourceName,
			Verdict: Rejected, Note: "allocations of the device manager are not converted; drain the pod first",
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
