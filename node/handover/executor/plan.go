package executor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/source"
	"berth/cri"
	"berth/internal/apiclient"
	"berth/internal/nodeconfig"
	"berth/node/handover"
	"berth/systemd/install"
)

const (
	// planTimeout limits each request to the runtime and to the API server.
	planTimeout = 15 * time.Second
	// kubeletVersionTimeout limits the time of kubelet --version.
	kubeletVersionTimeout = 5 * time.Second
)

// PlanTakeover reads the host and makes the plan of a takeover. It also returns the pods of the node.
func PlanTakeover(ctx context.Context, unit handover.UnitState) (handover.Plan, []*corev1.Pod, error) {
	f, err := readFacts(ctx, unit)
	if err != nil {
		return handover.Plan{}, nil, fmt.Errorf("read the configuration of the kubelet: %w", err)
	}
	s := handover.Resolve(f.Args, f.Documents)
	if unit.Loaded {
		f.RuntimeName, f.RuntimeErr = runtimeName(ctx, s.RuntimeEndpoint())
		f.StaticPods = staticPods(f.StaticFiles)
		f.KubeletVersion = kubeletVersion(ctx, f.Program)
	}
	if kubeconfig, _ := s.Kubeconfig(); f.Existing[kubeconfig] {
		name, err := nodeName(s)
		if err == nil {
			f.Pods, err = podsOfNode(ctx, kubeconfig, name)
		}
		var n corev1.Node
		if err == nil {
			err = apiRequest(ctx, kubeconfig, http.MethodGet, "/api/v1/nodes/"+name, nil, &n)
		}
		if err == nil {
			f.OldCertificate, f.CurrentCertificate, err = apiclient.UnrotatedCertificate(kubeconfig, s.CertDir())
		}
		if err != nil {
			f.PodsErr = err.Error()
		}
		f.NodeAddresses, f.LocalAddresses = n.Status.Addresses, localAddresses()
	}
	return handover.Make(f), f.Pods, nil
}

// PlanHandback makes the plan of a handback, after a complete takeover.
func (x *Executor) PlanHandback(ctx context.Context, r *handover.Record) handover.Plan {
	f := handover.HandbackFacts{Before: r.Pods}
	pods, err := x.agentPodList(ctx)
	if err != nil {
		f.PodsErr = err.Error()
	}
	f.Pods = pods
	if checkpoints, _, err := handover.ReadState(r.RootDir); err == nil {
		f.Checkpoints = checkpoints
	} else {
		f.PodsErr = cmp.Or(f.PodsErr, err.Error())
	}
	if facts, err := readFacts(ctx, r.Unit); err == nil {
		f.KubeletVersion = kubeletVersion(ctx, facts.Program)
	}
	return handover.MakeHandback(f)
}

// readFacts reads what is on the host without the runtime and the API server.
func readFacts(ctx context.Context, unit handover.UnitState) (handover.Facts, error) {
	p, err := install.Properties(ctx, handover.KubeletService, "FragmentPath", "DropInPaths", "MainPID")
	if err != nil {
		return handover.Facts{}, err
	}
	process := handover.Process{UnitFiles: append([]string{p["FragmentPath"]}, strings.Fields(p["DropInPaths"])...)}
	if text, err := os.ReadFile("/proc/" + p["MainPID"] + "/cmdline"); err == nil && p["MainPID"] != "0" {
		process.CommandLine = strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
	}
	return handover.Read(process, unit)
}

// recheck reads the checkpoints, the volumes and the pods again after the kubelet has stopped. It
// returns an error if the kubelet has started something in the meantime that berth cannot continue.
func (x *Executor) recheck(ctx context.Context, r *handover.Record) error {
	checkpoints, found, err := handover.ReadState(r.RootDir)
	if err != nil {
		return err
	}
	var pods []*corev1.Pod
	c, _, err := nodeconfig.Parse([]byte(r.Configuration), &nodeconfig.Flags{Config: x.ConfigFile})
	if err != nil {
		return err
	}
	if c.Kubeconfig != "" {
		if pods, err = podsOfNode(ctx, c.Kubeconfig, c.NodeName); err != nil {
			return err
		}
	}
	for _, row := range handover.StateRows(checkpoints, found, pods) {
		if row.Verdict == handover.Rejected {
			return fmt.Errorf("%s of pod %s: %s", row.Subject, row.Pod, row.Note)
		}
	}
	return nil
}

func runtimeName(ctx context.Context, endpoint string) (name, problem string) {
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	c, err := cri.Dial(ctx, cri.Options{RuntimeEndpoint: endpoint})
	if err != nil {
		return "", err.Error()
	}
	defer c.Close()
	if name, _, err = c.Version(ctx); err != nil {
		return "", err.Error()
	}
	return name, ""
}

// staticPods returns the pods in the files that can be decoded. The agent reports the other files.
func staticPods(files []string) (out []*corev1.Pod) {
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if m, err := source.Decode(content); err == nil {
			out = append(out, m.Pods...)
		}
	}
	return out
}

func nodeName(s *handover.Settings) (string, error) {
	name, _ := s.Berth["nodeName"].(string)
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", err
		}
		name = host
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}

// podsOfNode lists the pods of a node with the kubelet's credentials.
func podsOfNode(ctx context.Context, kubeconfig, node string) ([]*corev1.Pod, error) {
	var all corev1.PodList
	query := url.Values{"fieldSelector": {"spec.nodeName=" + node}}.Encode()
	if err := apiRequest(ctx, kubeconfig, http.MethodGet, "/api/v1/pods?"+query, nil, &all); err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	for i := range all.Items {
		pods = append(pods, &all.Items[i])
	}
	return pods, nil
}

// localAddresses returns the addresses of this host.
func localAddresses() (out []string) {
	all, _ := net.InterfaceAddrs() // without them, the Node's addresses count as foreign
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			out = append(out, n.IP.String())
		}
	}
	return out
}

// kubeletVersion returns the output of kubelet --version. Empty: it is unknown.
func kubeletVersion(ctx context.Context, program string) string {
	if program == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, kubeletVersionTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, program, "--version")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) } // it can be a script
	c.WaitDelay = time.Second
	out, err := c.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
