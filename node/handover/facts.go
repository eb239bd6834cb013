package handover

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/nodeconfig"
	"berth/podspec"
)

// Facts are what Make knows about the host.
type Facts struct {
	Unit      UnitState
	Args      []string   // command line of the kubelet without the program
	Documents []UnitFile // configuration file and drop-in files, in order
	// UnitChanged means that the running kubelet has other arguments than its unit files specify.
	UnitChanged bool

	// StateSpace is the free space in the file system of berth's state directory, in bytes.
	StateSpace uint64

	Program        string // of the kubelet; empty: unknown
	KubeletVersion string // as it prints it; empty: unknown

	// OldCertificate is the field of the kubeconfig with a client certificate that the kubelet has rotated to
	// CurrentCertificate. Empty: the kubeconfig names the current one, or none.
	OldCertificate, CurrentCertificate string

	NodeAddresses  []corev1.NodeAddress // of the Node
	LocalAddresses []string             // of this host

	Existing    map[string]bool   // whether a file of the configuration exists, by path
	RuntimeName string            // reported by the runtime; empty: see RuntimeErr
	RuntimeErr  string            // why the runtime cannot be reached
	Checkpoints map[string]string // content by name in the root directory
	Volumes     []Volume          // volumes in pod directories
	Pods        []*corev1.Pod     // of the API server, on this node
	PodsErr     string            // why the pods are unknown; empty: standalone, or Pods is complete
	StaticFiles []string          // files in the static pod directory that the kubelet reads
	StaticPods  []*corev1.Pod     // pods of these files
}

// UnitState is the state of kubelet.service.
type UnitState struct {
	Loaded  bool   `json:"loaded"`
	Enabled string `json:"enabled"` // UnitFileState of systemd: enabled, disabled, static, …
	Active  bool   `json:"active"`
}

// Volume is a volume in the directory of a pod.
type Volume struct {
	Pod          types.UID
	Plugin, Name string // such as kubernetes.io~csi
}

// StateRows returns the rows about checkpoints, volumes and pods alone.
func StateRows(checkpoints map[string]string, found []Volume, pods []*corev1.Pod) []Row {
	f := Facts{Checkpoints: checkpoints, Volumes: found, Pods: pods}
	return slices.Concat(f.checkpointRows(), f.volumeRows(), f.podRows())
}

func (f Facts) unitRows() (rows []Row) {
	if !f.Unit.Loaded {
		return []Row{{Subject: KubeletService, Verdict: Rejected, Note: "the unit does not exist on this host"}}
	}
	if strings.HasPrefix(f.Unit.Enabled, "masked") {
		rows = append(rows, Row{Subject: KubeletService, Value: f.Unit.Enabled, Verdict: Rejected,
			Note: "handback could not start the unit; run systemctl unmask " + KubeletService})
	}
	if !f.Unit.Active {
		rows = append(rows, Row{Subject: KubeletService, Value: "inactive", Verdict: Warning,
			Note: "handback will not start the unit, because it is not active now"})
	}
	if f.UnitChanged {
		rows = append(rows, Row{Subject: KubeletService, Verdict: Warning, Note: "the running kubelet has other " +
			"arguments than its unit; those of the running kubelet are used"})
	}
	if oldKubelet(f.KubeletVersion) {
		rows = append(rows, Row{Subject: KubeletService, Value: f.KubeletVersion, Verdict: Warning,
			Note: "after a handback, a kubelet before 1.31 restarts containers that berth has started"})
	}
	return rows
}

// addressRows sets nodeIPs to the addresses of the Node. The kubelet finds its address by the name of the
// node first, and berth by the default route.
func (f Facts) addressRows(s *Settings) {
	if _, set := s.Berth["nodeIPs"]; set {
		return
	}
	var list []any
	for _, a := range f.NodeAddresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if !slices.Contains(f.LocalAddresses, a.Address) {
			s.add(Row{Subject: "status.addresses[InternalIP]", Value: a.Address, Verdict: Warning,
				Note: "the address is not on this host; berth detects an address. To set another one, use --node-ip"})
			return
		}
		same := func(other any) bool {
			text, _ := other.(string) // of this function
			return strings.Contains(a.Address, ":") == strings.Contains(text, ":")
		}
		if !slices.ContainsFunc(list, same) { // one for each family
			list = append(list, a.Address)
		}
	}
	if len(list) > 0 {
		s.Berth["nodeIPs"] = list
		s.add(Row{Subject: "status.addresses[InternalIP]", Value: shown(list), Verdict: Supported,
			Note: "becomes nodeIPs"})
	}
}

// minStateSpace is the free space that berth needs for its local store and the records of the pods.
const minStateSpace = 64 << 20

// spaceRows rejects a takeover by a berth that could not record which pods it has adopted.
func (f Facts) spaceRows() []Row {
	if f.StateSpace >= minStateSpace {
		return nil
	}
	return []Row{{
		Subject: nodeconfig.DefaultStateDir, Value: fmt.Sprintf("%d MiB free", f.StateSpace>>20), Verdict: Rejected,
		Note: fmt.Sprintf("berth needs at least %d MiB of free space for its local store", minStateSpace>>20),
	}}
}

func (f Facts) serverRows(s *Settings) []Row {
	kubeconfig, bootstrap := s.Kubeconfig()
	r := Row{Subject: "--kubeconfig", Value: kubeconfig, Verdict: Supported}
	switch {
	case kubeconfig == "" && bootstrap == "":
		r.Note = "not set: the node stays standalone"
	case f.Existing[kubeconfig]:
		return nil // has the row of its flag
	case kubeconfig != "" && f.Existing[bootstrap]:
		r.Verdict, r.Note = Rejected, "the file does not exist: the kubelet has not finished its bootstrap"
	default:
		r.Verdict, r.Note = Rejected, "the file does not exist"
	}
	return []Row{r}
}

// certificateRows rejects a kubeconfig with an old certificate. The kubelet prefers the one that it has rotated.
func (f Facts) certificateRows(s *Settings) []Row {
	rotates, _ := s.Kubelet["rotateCertificates"].(bool)
	if f.OldCertificate == "" || !rotates {
		return nil
	}
	kubeconfig, _ := s.Kubeconfig()
	return []Row{{Subject: f.OldCertificate, Value: kubeconfig, Verdict: Rejected,
		Note: "the kubelet has rotated this certificate; set client-certificate and client-key to " +
			f.CurrentCertificate}}
}

func (f Facts) runtimeRows(s *Settings) []Row {
	r := Row{Subject: "containerRuntimeEndpoint", Value: s.RuntimeEndpoint(), Verdict: Rejected}
	switch f.RuntimeName {
	case "containerd":
		return nil
	case "":
		r.Note = "the runtime cannot be reached: " + f.RuntimeErr
	default:
		r.Note = fmt.Sprintf("the runtime is %s, berth requires containerd", f.RuntimeName)
	}
	return []Row{r}
}

// volumePlugins are the plugins whose volumes berth manages in the same layout.
var volumePlugins = []string{
	"kubernetes.io~empty-dir", "kubernetes.io~configmap", "kubernetes.io~secret", "kubernetes.io~projected",
	"kubernetes.io~downward-api",
}

func (f Facts) volumeRows() (rows []Row) {
	for _, v := range f.Volumes {
		if slices.Contains(volumePlugins, v.Plugin) {
			continue
		}
		rows = append(rows, Row{
			Subject: "spec.volumes[" + v.Name + "]", Pod: f.podName(v.Pod), Verdict: Rejected,
			Value: strings.ReplaceAll(v.Plugin, "~", "/"),
			Note:  "the volume plugin is not supported; drain the pod first",
		})
	}
	return rows
}

// claimRows returns rows for the claims of a pod. Which volumes they are bound to, and where the kubelet has mounted
// those, is not known here.
func claimRows(p *corev1.Pod) (rows []Row) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if podspec.ClaimName(p, v) == "" {
			continue
		}
		kind := "persistentVolumeClaim"
		if v.Ephemeral != nil {
			kind = "ephemeral"
		}
		rows = append(rows, Row{Subject: fmt.Sprintf("spec.volumes[%d].%s", i, kind), Pod: key(p), Verdict: Rejected,
			Note: "pods with claims are not taken over yet"})
	}
	return rows
}

// podRows adds rows for what the pods use, as far as berth would reject it.
func (f Facts) podRows() (rows []Row) {
	if f.PodsErr != "" {
		rows = append(rows, Row{Subject: "pods of this node", Verdict: Rejected,
			Note: "the API server does not list them, so berth cannot adopt them: " + f.PodsErr})
	}
	for _, p := range f.Pods {
		for _, use := range podspec.FeatureUses(p) {
			rows = append(rows, Row{Subject: use.Path.String(), Pod: key(p), Verdict: Rejected, Note: use.Reason})
		}
		rows = append(rows, claimRows(p)...)
		for _, c := range p.Status.Conditions {
			resizing := c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
			if resizing && c.Status == corev1.ConditionTrue {
				rows = append(rows, Row{Subject: "status.conditions[" + string(c.Type) + "]", Pod: key(p),
					Value: c.Reason, Verdict: Rejected,
					Note: "the allocated resources differ from the spec; wait for the resize"})
			}
		}
	}
	for _, p := range f.StaticPods {
		_, rejected := podspec.UnsupportedFields(p)
		for _, e := range rejected {
			rows = append(rows, Row{Subject: e.Field, Pod: key(p), Verdict: Rejected, Note: e.Detail})
		}
	}
	for _, file := range f.StaticFiles {
		if !slices.Contains([]string{".yaml", ".yml", ".json", ".manifest"}, filepath.Ext(file)) {
			rows = append(rows, Row{Subject: file, Verdict: Rejected,
				Note: "the kubelet runs the pod of this file, berth reads only .yaml, .yml, .json and .manifest"})
		}
	}
	return rows
}

func key(p *corev1.Pod) string { return cmp.Or(p.Namespace, "default") + "/" + p.Name }

// podName returns namespace and name of a pod of the API server, else its UID.
func (f Facts) podName(uid types.UID) string {
	if p := f.pod(uid); p != nil {
		return key(p)
	}
	return string(uid)
}

// pod returns the pod of the API server with a UID on this node. For a static pod it is the mirror pod, which has
// the UID of the static pod in an annotation. nil: it is unknown.
func (f Facts) pod(uid types.UID) *corev1.Pod {
	for _, p := range f.Pods {
		if p.UID == uid || p.Annotations[corev1.MirrorPodAnnotationKey] == string(uid) {
			return p
		}
	}
	return nil
}

func isFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
