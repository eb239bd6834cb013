package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// Features is what one runtime handler can do.
type Features struct {
	RecursiveReadOnlyMounts bool
	UserNamespaces          bool
}

// Status is how the runtime is and what it can do.
type Status struct {
	Ready                    bool
	Reason                   string // why it is not ready, for people
	NetworkReady             bool
	NetworkMessage           string              // why the network is not ready
	Handlers                 map[string]Features // by CRI handler name; "" is the default. Nil: the runtime does not tell
	SupplementalGroupsPolicy bool                // it knows supplementalGroupsPolicy
	CgroupDriver             string              // cgroupfs or systemd; empty: the runtime does not tell
	NoImageVolumesReason     string              // why images cannot be mounted as volumes; empty: they can
	NoCDIReason              string              // why devices cannot be given by CDI; empty: they can
}

// Status asks the runtime how it is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	resp, err := c.status(ctx, false)
	if err != nil {
		c.facts.forget()
		return Status{}, err
	}
	last, err := c.lasting(ctx)
	if err != nil {
		return Status{}, err
	}
	s := Status{
		Handlers:                 handlers(resp.GetRuntimeHandlers()),
		SupplementalGroupsPolicy: resp.GetFeatures().GetSupplementalGroupsPolicy(),
		CgroupDriver:             last.driver, NoImageVolumesReason: last.noImages, NoCDIReason: last.noCDI,
	}
	s.Ready, s.Reason = condition(resp, runtimeapi.RuntimeReady)
	s.NetworkReady, s.NetworkMessage = condition(resp, runtimeapi.NetworkReady)
	return s, nil
}

// StatusInfo returns what else the runtime says of itself: JSON by name, such
// as its whole configuration under "config". Its shape is the runtime's own.
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

func handlers(of []*runtimeapi.RuntimeHandler) map[string]Features {
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

// condition reports one of the runtime's conditions and, if it is not true, why.
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

// runtimeFacts is what cannot change while the runtime runs.
type runtimeFacts struct {
	mu   sync.Mutex
	told *lasting // nil: not asked
	dirs *Layout  // nil: not asked
}

// lasting is what the runtime says by itself, or by its version.
type lasting struct {
	driver   string // of cgroups; empty where the runtime is too old to tell
	noImages string // why image volumes cannot be had
	noCDI    string // why devices cannot be had by CDI
}

// forget is called when the runtime may have been restarted.
func (f *runtimeFacts) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told, f.dirs = nil, nil
}

func (f *runtimeFacts) get() *lasting {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told
}

func (f *runtimeFacts) set(l lasting) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = &l
}

// layout returns where containerd keeps things, if that was asked.
func (f *runtimeFacts) layout() (Layout, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirs == nil {
		return Layout{}, false
	}
	return *f.dirs, true
}

func (f *runtimeFacts) setLayout(dirs Layout) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirs = &dirs
}

// lasting asks once for what cannot change while the runtime runs.
func (c *Client) lasting(ctx context.Context) (l lasting, err error) {
	if told := c.facts.get(); told != nil {
		return *told, nil
	}
	if l.driver, err = c.cgroupDriver(ctx); err != nil {
		return lasting{}, err
	}
	name, version, err := c.Version(ctx)
	if err != nil {
		return lasting{}, err
	}
	// No runtime tells either by itself: one that is too old takes an image's
	// mount for one of an empty path, and does not see CDI devices.
	l.noImages = tooOld(name, version, "image volumes need", 2, 1)
	l.noCDI = tooOld(name, version, "CDI devices need", 1, 7)
	c.facts.set(l)
	return l, nil
}

// tooOld says why a runtime cannot do what a version of containerd can; empty:
// it can, or is one of which that is not known.
func tooOld(name, version, need string, major, minor int) string {
	var have [2]int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &have[0], &have[1]); name != "containerd" || n < 2 {
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
