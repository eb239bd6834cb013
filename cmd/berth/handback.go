package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"berth/internal/apiclient"
	"berth/internal/nodeconfig"
	"berth/node/handover"
	"berth/node/registration"
	"berth/podspec"
)

// handbackOptions contains the flags of berth handback.
type handbackOptions struct {
	out           io.Writer
	dryRun, force bool
	format        string
}

func handbackCommand() *cobra.Command {
	var o handbackOptions
	cmd := &cobra.Command{
		Use:   "handback",
		Short: "Undo a takeover: replace berth on this host with the kubelet",
		Long: `Undo berth takeover, also an interrupted one: stop and disable berth.service, release the pods, restore
the previous configuration of berth, and enable and start kubelet.service as it was before the takeover.

After a complete takeover, the command first prints a plan. If the kubelet would restart a pod, run it twice or
give away its devices, the row of the pod is rejected, and nothing is changed.

The kubelet finds its certificates, image pull records and checkpoints in the same files. The pods belong to
the kubelet then: a later start of berth does not change them unless it adopts them, and berth uninstall keeps
them.`,
		Example: `  berth handback --dry-run
  berth handback
  systemctl status kubelet`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			return o.do(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "only print the plan")
	cmd.Flags().BoolVar(&o.force, "force", false, "hand back even if rows are rejected: the kubelet restarts these pods")
	cmd.Flags().StringVarP(&o.format, "output", "o", "", "format of the plan: json")
	return cmd
}

func (o handbackOptions) do(ctx context.Context) error {
	if err := checkPlanFormat(o.format); err != nil {
		return err
	}
	r, err := handover.ReadRecord(nodeconfig.DefaultStateDir)
	if err != nil {
		return err
	}
	if r == nil {
		return errors.New("this host has no takeover to undo")
	}
	h := &handoverHost{out: o.out, stateDir: nodeconfig.DefaultStateDir}
	if r.Direction == handover.Takeover && r.Completed { // the pods of an incomplete takeover are the kubelet's
		plan := handover.MakeHandback(handbackFacts(ctx, r))
		if err := printPlan(o.out, o.format, plan); err != nil || o.dryRun {
			return err
		}
		if n := len(plan.Rejected()); n > 0 && !o.force {
			return fmt.Errorf("%d rows of the plan are rejected, nothing was changed", n)
		}
	}
	if o.dryRun {
		state, err := h.observe(ctx, r)
		if err == nil {
			r.Turn(handover.Handback)
			_, err = fmt.Fprintf(o.out, "next step: %s\n", cmp.Or(handover.NextStep(r, state, nil), "none"))
		}
		return err
	}
	r.Turn(handover.Handback)
	if err := h.run(ctx, r); err != nil || r.Unit.Active {
		return err
	}
	_, err = fmt.Fprintf(o.out, "%s was not active before the takeover and is not started: run systemctl start %s\n",
		handover.KubeletService, handover.KubeletService)
	return err
}

// handbackFacts reads what the plan of a handback depends on.
func handbackFacts(ctx context.Context, r *handover.Record) handover.HandbackFacts {
	f := handover.HandbackFacts{Before: r.Pods}
	pods, err := agentPodList(ctx)
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
	return f
}

// kubeletVersionTimeout limits the time of kubelet --version.
const kubeletVersionTimeout = 5 * time.Second

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

// cleanNode removes the labels and the annotation of berth from the Node. A later installation of berth
// would otherwise wait for the lease of this one. An error is only printed: the kubelet works with them.
func (h *handoverHost) cleanNode(ctx context.Context, r *handover.Record) error {
	if err := cleanNode(ctx, r); err != nil {
		_, err = fmt.Fprintf(h.out, "  labels and annotations of berth remain on the Node: %v\n", err)
		if err != nil {
			return err
		}
	}
	r.NodeCleaned = true
	return r.Write(h.stateDir)
}

func cleanNode(ctx context.Context, r *handover.Record) error {
	c, _, err := nodeconfig.Parse([]byte(r.Configuration), &nodeconfig.Flags{Config: configFile})
	if err != nil || c.Kubeconfig == "" {
		return err
	}
	path := "/api/v1/nodes/" + c.NodeName
	var n corev1.Node
	if err := apiRequest(ctx, c.Kubeconfig, http.MethodGet, path, nil, &n); err != nil {
		return err
	}
	patch := nodeCleanup(&n)
	if patch == nil {
		return nil
	}
	return apiRequest(ctx, c.Kubeconfig, http.MethodPatch, path, patch, &n)
}

// nodeCleanup returns the merge patch that removes what berth has added to the metadata of a Node; nil:
// nothing.
func nodeCleanup(n *corev1.Node) map[string]any {
	labels, meta := map[string]any{}, map[string]any{}
	for name := range n.Labels {
		if strings.HasPrefix(name, podspec.FeatureLabelPrefix) {
			labels[name] = nil
		}
	}
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	if _, set := n.Annotations[registration.InstallationAnnotation]; set {
		meta["annotations"] = map[string]any{registration.InstallationAnnotation: nil}
	}
	if len(meta) == 0 {
		return nil
	}
	return map[string]any{"metadata": meta}
}

// apiRequest sends a request to the API server with the kubelet's credentials and decodes the response.
// path can have a query. A body is a merge patch.
func apiRequest(ctx context.Context, kubeconfig, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	config, err := apiclient.LoadConfig(kubeconfig)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	at, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	path, query, _ := strings.Cut(path, "?")
	at = at.JoinPath(path)
	at.RawQuery = query
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, at.String(), content)
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", string(types.MergePatchType))
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, at.Path, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(into)
}
