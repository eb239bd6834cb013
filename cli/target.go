package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// target is the pod that a command refers to.
type target struct{ namespace, name string }

// namespaceFlag adds -n to cmd.
func namespaceFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVarP(to, "namespace", "n", "default", "namespace of the pod")
}

// targetOf parses POD: a name, namespace/name, or pod/name. "pod", "pods" and "po" are always the
// kind. A namespace with such a name requires -n.
func targetOf(cmd *cobra.Command, namespace, arg string) (target, error) {
	first, name, two := strings.Cut(arg, "/")
	switch {
	case !two:
		name = first
	case slices.Contains([]string{"pod", "pods", "po"}, first):
	case cmd.Flags().Changed("namespace") && namespace != first:
		return target{}, fmt.Errorf("%s: the namespace is given twice, as %q and with -n as %q", arg, first, namespace)
	default:
		namespace = first
	}
	if name == "" || namespace == "" || strings.Contains(name, "/") {
		return target{}, fmt.Errorf("invalid pod name %q: use NAME, NAMESPACE/NAME or pod/NAME", arg)
	}
	return target{namespace: namespace, name: name}, nil
}

// onePod validates the arguments of commands that take exactly one pod.
func onePod(_ *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return errors.New("a pod is required: NAME, NAMESPACE/NAME or pod/NAME")
	case 1:
		return nil
	default:
		return fmt.Errorf("only one pod is allowed: %s", strings.Join(args, " "))
	}
}

// completePods completes the first argument with pod names.
func (c *factory) completePods(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	pods, err := c.podsToComplete(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	namespace := cmd.Flag("namespace").Value.String()
	var names []string
	for _, p := range pods {
		switch kind, _, two := strings.Cut(typed, "/"); {
		case two && (kind == "pod" || kind == "pods" || kind == "po"):
			if p.Namespace == namespace {
				names = append(names, kind+"/"+p.Name)
			}
		case two:
			names = append(names, p.Namespace+"/"+p.Name)
		case p.Namespace == namespace:
			names = append(names, p.Name)
		}
	}
	return matching(names, typed), cobra.ShellCompDirectiveNoFileComp
}

// completeNamespaces completes -n.
func (c *factory) completeNamespaces(
	cmd *cobra.Command,
	_ []string,
	typed string,
) ([]string, cobra.ShellCompDirective) {
	pods, err := c.podsToComplete(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, p := range pods {
		names = append(names, p.Namespace)
	}
	return matching(names, typed), cobra.ShellCompDirectiveNoFileComp
}

// completeContainers completes -c with the containers of the given pod.
func (c *factory) completeContainers(
	cmd *cobra.Command,
	args []string,
	typed string,
) ([]string, cobra.ShellCompDirective) {
	pods, err := c.podsToComplete(cmd)
	if err != nil || len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	t, err := targetOf(cmd, cmd.Flag("namespace").Value.String(), args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for i := range pods {
		if pods[i].Namespace == t.namespace && pods[i].Name == t.name {
			names = append(names, containersOf(&pods[i])...)
		}
	}
	return matching(names, typed), cobra.ShellCompDirectiveNoFileComp
}

// completionContext limits how long a completion blocks the shell.
func completionContext(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	return context.WithTimeout(parent, 2*time.Second)
}

// podsToComplete lists all pods, with a timeout so that the shell does not block.
func (c *factory) podsToComplete(cmd *cobra.Command) ([]corev1.Pod, error) {
	client, err := c.dial()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := completionContext(cmd)
	defer cancel()
	pods, err := client.Pods(ctx, nodeapi.PodsRequest{})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

func matching(names []string, typed string) []string {
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, typed) })
	slices.Sort(names)
	return slices.Compact(names)
}

// complete registers completion functions for a command that takes one pod, except for the excluded
// flags.
func (c *factory) complete(cmd *cobra.Command, but ...string) {
	cmd.ValidArgsFunction = c.completePods
	for flag, f := range map[string]cobra.CompletionFunc{
		"namespace": c.completeNamespaces, "container": c.completeContainers,
	} {
		if cmd.Flags().Lookup(flag) == nil || slices.Contains(but, flag) {
			continue
		}
		if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
			panic(err) // registered twice: a programming error
		}
	}
}

// fixed completes a flag with constant values.
func fixed(cmd *cobra.Command, flag string, words ...string) {
	err := cmd.RegisterFlagCompletionFunc(
		flag,
		func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return matching(slices.Clone(words), typed), cobra.ShellCompDirectiveNoFileComp
		},
	)
	if err != nil {
		panic(err) // registered twice: a programming error
	}
}

// containersOf returns the names of all containers of a pod: init containers, app containers and
// ephemeral containers, each in the order of the spec.
func containersOf(p *corev1.Pod) []string {
	var names []string
	for _, c := range p.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	return names
}

// dialContainer returns a client, a pod and a container chosen by chooseContainer. The caller
// closes the client, unless there is an error.
func (c *factory) dialContainer(
	cmd *cobra.Command,
	namespace, name, container string,
) (*nodeapi.Client, *corev1.Pod, string, error) {
	t, err := targetOf(cmd, namespace, name)
	if err != nil {
		return nil, nil, "", err
	}
	client, err := c.dial()
	if err != nil {
		return nil, nil, "", err
	}
	pod, err := client.Pod(cmd.Context(), t.namespace, t.name)
	if err == nil {
		container, err = chooseContainer(pod, container, cmd.ErrOrStderr())
	}
	if err != nil {
		client.Close()
		return nil, nil, "", err
	}
	return client, pod, container, nil
}
