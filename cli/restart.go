package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func (c *factory) restart() *cobra.Command {
	var namespace string
	var containers []string
	cmd := &cobra.Command{
		Use:   "restart POD[/CONTAINER] [-c CONTAINER...]",
		Short: "Restart containers of a pod, bypassing any back-off",
		Long: `Stop containers of a pod with their grace period and start them again in place, or start containers in
back-off immediately. Without a container name, all app containers and sidecars are restarted. The pod
keeps its identity and IP address. The request is persisted, and is completed even if berth is restarted
in between.`,
		Example: `  berth restart web
  berth restart web/app
  berth restart kube-system/dns -c dns -c sidecar`,
		Args: onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			t, names, err := restartTarget(cmd, client, namespace, args[0])
			if err != nil {
				return err
			}
			if len(names) > 0 && len(containers) > 0 {
				return errors.New("POD/CONTAINER and -c cannot be used together")
			}
			names = append(names, containers...)
			if err := client.Restart(
				cmd.Context(), nodeapi.RestartRequest{Namespace: t.namespace, Pod: t.name, Containers: names},
			); err != nil {
				return err
			}
			what := "pod/" + t.name
			if len(names) > 0 {
				what += " (" + strings.Join(names, ", ") + ")"
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), clean(what)+" restarted")
			return err
		},
	}
	namespaceFlag(cmd, &namespace)
	cmd.Flags().StringSliceVarP(&containers, "container", "c", nil, "container name; can be repeated")
	c.complete(cmd)
	cmd.ValidArgsFunction = c.completeRestart
	return cmd
}

// restartTarget parses POD, pod/POD, NAMESPACE/POD and POD/CONTAINER, the second and third also
// with a container appended. For A/B, a pod A of the namespace with a container B has precedence
// over a pod B in namespace A.
func restartTarget(cmd *cobra.Command, client *nodeapi.Client, namespace, arg string) (target, []string, error) {
	parts := strings.Split(arg, "/")
	kind := slices.Contains([]string{"pod", "pods", "po"}, parts[0])
	switch {
	case len(parts) == 3:
		t, err := targetOf(cmd, namespace, parts[0]+"/"+parts[1])
		return t, parts[2:], err
	case len(parts) == 2 && !kind:
		pod, err := client.Pod(cmd.Context(), namespace, parts[0])
		if err == nil && slices.Contains(containersOf(pod), parts[1]) {
			return target{namespace, parts[0]}, parts[1:], nil
		}
		if err == nil { // neither a container of the pod nor a pod in another namespace
			if _, err := client.Pod(cmd.Context(), parts[0], parts[1]); apierrors.IsNotFound(err) {
				return target{}, nil, fmt.Errorf("pod %s has no container %s", clean(parts[0]), clean(parts[1]))
			}
		}
	}
	t, err := targetOf(cmd, namespace, arg)
	return t, nil, err
}

// completeRestart completes a pod, and after it the containers.
func (c *factory) completeRestart(
	cmd *cobra.Command,
	args []string,
	typed string,
) ([]string, cobra.ShellCompDirective) {
	names, directive := c.completePods(cmd, args, typed)
	if len(args) > 0 || !strings.Contains(typed, "/") {
		return names, directive
	}
	pods, err := c.podsToComplete(cmd)
	if err != nil {
		return names, directive
	}
	for i := range pods {
		p := &pods[i]
		for _, container := range containersOf(p) {
			if p.Namespace == cmd.Flag("namespace").Value.String() {
				names = append(names, p.Name+"/"+container)
			}
			names = append(names, p.Namespace+"/"+p.Name+"/"+container)
		}
	}
	return matching(names, typed), directive
}
