package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
)

// Features are the features of a runtime handler.
type Features struct {
	RecursiveReadOnlyMounts bool
	UserNamespaces          bool
}

// Status is the condition of the runtime and its features.
type Status struct {
	Ready                    bool
	Reason                   string // why it is not ready, for users
	NetworkReady             bool
	NetworkMessage           string              // why the network is not ready
	Handlers                 map[string]Features // by CRI handler name; "" is the default. Nil: not reported
	SupplementalGroupsPolicy bool                // the runtime supports supplementalGroupsPolicy
	CgroupDriver             string              // cgroupfs or systemd; empty: not reported
	NoImageVolumesReason     string              // why image volumes are not supported; empty: they are
	NoCDIReason              string              // why CDI devices are not supported; empty: they are
}

// ApplyTo sets the features of the runtime in the conversion of pods to CRI requests.
func (s *Status) ApplyTo(n *criconfig.Node) {
	n.SupplementalGroupsPolicy = s.SupplementalGroupsPolicy
	n.NoImageVolumesReason, n.NoCDIReason = s.NoImageVolumesReason, s.NoCDIReason
	n.Features = make(map[string]criconfig.HandlerFeatures, len(s.Handlers))
	n.Handlers = make(map[string]string, len(s.Handlers))
	for name, f := range s.Handlers {
		n.Features[name] = criconfig.HandlerFeatures(f)
		if name != "" { // without an API server, a RuntimeClass is named after its handler
			n.Handlers[name] = name
		}
	}
}

// NodeHandlers returns the runtime handlers as in the status of a Node, by name.
func (s *Status) NodeHandlers() (out []corev1.NodeRuntimeHandler) {
	for _, name := range slices.Sorted(maps.Keys(s.Handlers)) {
		f := s.Handlers[name]
		out = append(out, corev1.NodeRuntimeHandler{Name: name, Features: &corev1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: &f.RecursiveReadOnlyMounts, UserNamespaces: &f.UserNamespaces,
		}})
	}
	return out
}

// Status returns the status of the runtime.
func (c *Client) Status(ctx context.Context) (Status, error) {
	resp, err := c.status(ctx, false)
	if err != nil {
		c.cache.reset()
		return Status{}, err
	}
	info, err := c.runtimeInfo(ctx)
	if err != nil {
		return Status{}, err
	}
	s := Status{
		Handlers:                 handlerFeatures(resp.GetRuntimeHandlers()),
		SupplementalGroupsPolicy: resp.GetFeatures().GetSupplementalGroupsPolicy(),
		CgroupDriver:             info.cgroupDriver,
		NoImageVolumesReason:     info.noImageVolumesReason,
		NoCDIReason:              info.noCDIReason,
	}
	s.Ready, s.Reason = condition(resp, runtimeapi.RuntimeReady)
	s.NetworkReady, s.NetworkMessage = condition(resp, runtimeapi.NetworkReady)
	return s, nil
}

// SandboxImages returns the sandbox image of a runtime that does not pin it.
func (c *Client) SandboxImages(ctx context.Context) []string {
	info, err := c.StatusInfo(ctx)
	if err != nil {
		return nil
	}
	return sandboxImages(info["config"])
}

// sandboxImages reads the sandbox image from containerd's configuration as JSON.
func sandboxImages(text json.RawMessage) []string {
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if json.Unmarshal(text, &config) != nil || config.SandboxImage == "" {
		return nil // pinned
	}
	return []string{config.SandboxImage}
}

// StatusInfo returns the verbose status of the runtime: JSON by name, for example the whole
// configuration under "config". The format is specific to the runtime.
func (c *Client) StatusInfo(ctx context.Context) (map[string]json.RawMessage, error) {
	resp, err := c.status(ctx, true)
	if err != nil {
		return nil, err
	}
	out := make(map[string]json.RawMessage, len(resp.GetInfo()))
	for k, v := range resp.GetInfo() {
		if !json.Valid([]byte(v)) {
			quoted, err := json.Marshal(v)
			if err != nil {
				continue
			}
			v = string(quoted)
		}
		out[k] = json.RawMessage(v)
	}
	return out, nil
}

func (c *Client) status(ctx context.Context, verbose bool) (resp *runtimeapi.StatusResponse, err error) {
	err = c.call(ctx, verbStatus, "", c.deadlines.Status, func(ctx context.Context) (err error) {
		resp, err = c.runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: verbose})
		return err
	})
	return resp, err
}

func handlerFeatures(of []*runtimeapi.RuntimeHandler) map[string]Features {
	if len(of) == 0 {
		return nil
	}
	out := make(map[string]Features, len(of))
	for _, h := range of {
		out[h.GetName()] = Features{
			RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(),
			UserNamespaces:          h.GetFeatures().GetUserNamespaces(),
		}
	}
	return out
}

// condition returns one of the runtime's conditions and, if it is not true, the reason.
func condition(resp *runtimeapi.StatusResponse, name string) (bool, string) {
	for _, cond := range resp.GetStatus().GetConditions() {
		if cond.GetType() == name {
			if cond.GetStatus() {
				return true, ""
			}
			return false, strings.Trim(cond.GetReason()+": "+cond.GetMessage(), ": ")
		}
	}
	return false, "the runtime does not report " + name
}

// runtimeCache caches what cannot change while the runtime runs.
type runtimeCache struct {
	mu   sync.Mutex
	info *runtimeInfo // nil: not read yet
	dirs *Layout      // nil: not read yet
}

// runtimeInfo is the part of the status that follows from the runtime's configuration or version.
type runtimeInfo struct {
	cgroupDriver         string // empty: the runtime is too old to report it
	noImageVolumesReason string // why image volumes are not supported
	noCDIReason          string // why CDI devices are not supported
}

// reset clears the cache after a possible restart of the runtime.
func (f *runtimeCache) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.info, f.dirs = nil, nil
}

func (f *runtimeCache) get() *runtimeInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.info
}

func (f *runtimeCache) set(l runtimeInfo) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.info = &l
}

// layout returns the cached layout of containerd.
func (f *runtimeCache) layout() (Layout, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirs == nil {
		return Layout{}, false
	}
	return *f.dirs, true
}

func (f *runtimeCache) setLayout(dirs Layout) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirs = &dirs
}

// runtimeInfo returns the cached runtimeInfo and reads it first if necessary.
func (c *Client) runtimeInfo(ctx context.Context) (l runtimeInfo, err error) {
	if info := c.cache.get(); info != nil {
		return *info, nil
	}
	if l.cgroupDriver, err = c.cgroupDriver(ctx); err != nil {
		return runtimeInfo{}, err
	}
	name, version, err := c.Version(ctx)
	if err != nil {
		return runtimeInfo{}, err
	}
	// No runtime reports these features: a runtime that is too old mounts an empty path instead of
	// the image and ignores CDI devices.
	l.noImageVolumesReason = versionReason(name, version, "image volumes need", 2, 1)
	l.noCDIReason = versionReason(name, version, "CDI devices need", 1, 7)
	c.cache.set(l)
	return l, nil
}

// versionReason returns why a runtime lacks a feature of that containerd version. Empty: it has the
// feature, or its version is unknown.
func versionReason(name, version, need string, major, minor int) string {
	var have [2]int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &have[0], &have[1]); name != "containerd" ||
		n < 2 {
		return ""
	}
	if have[0] > major || have[0] == major && have[1] >= minor {
		return ""
	}
	return fmt.Sprintf("%s containerd %d.%d or newer, this node has %s", need, major, minor, version)
}

func (c *Client) cgroupDriver(ctx context.Context) (string, error) {
	var resp *runtimeapi.RuntimeConfigResponse
	err := c.call(ctx, verbStatus, "", c.deadlines.Status, func(ctx context.Context) (err error) {
		resp, err = c.runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
		return err
	})
	if err != nil && plan.KindOf(err) != plan.Unsupported {
		return "", err
	}
	driver := ""
	if linux := resp.GetLinux(); linux != nil {
		driver = strings.ToLower(linux.GetCgroupDriver().String())
	}
	return driver, nil
}
