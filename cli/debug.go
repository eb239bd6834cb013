package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// debugOptions are the flags of debug.
type debugOptions struct {
	attachOptions
	image, target, pull, profile string
	env                          []string
	attach, args                 bool
}

func (c *factory) debug() *cobra.Command {
	o := debugOptions{}
	cmd := &cobra.Command{
		Use:   "debug POD --image IMAGE [--target CONTAINER] [-it] [-- COMMAND [ARG...]]",
		Short: "Add an ephemeral container to a running pod",
		Long: `Add an ephemeral container to a running pod, for tools that its images do not contain. With --target
the container shares the process namespace of another container, whose files are then visible below
/proc/1/root. The ephemeral container runs once and stays in the pod until the pod is deleted. The
manifest is not changed. --profile sets its security context:

  general     trace processes (SYS_PTRACE)
  baseline    the default of any container
  restricted  non-root, no capabilities, the runtime's default seccomp profile
  netadmin    administer the pod's network (NET_ADMIN, NET_RAW)
  sysadmin    privileged`,
		Example: `  berth debug web --image busybox:1.36 --target app -it
  berth debug web --image busybox:1.36 --attach -- wget -qO- localhost`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args = args[:dash]
			}
			return onePod(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.start(cmd, c, args) },
	}
	f := cmd.Flags()
	namespaceFlag(cmd, &o.namespace)
	f.StringVar(&o.image, "image", "", "image of the ephemeral container")
	f.StringVarP(&o.container, "container", "c", "", "name of the ephemeral container")
	f.StringVar(&o.target, "target", "", "container whose process namespace is shared")
	f.StringVar(&o.pull, "image-pull-policy", "", "image pull policy: Always, IfNotPresent or Never")
	f.StringVar(
		&o.profile,
		"profile",
		"general",
		"security profile: general, baseline, restricted, netadmin or sysadmin",
	)
	f.StringSliceVar(&o.env, "env", nil, "environment variables NAME=VALUE")
	f.BoolVarP(&o.stdin, "stdin", "i", false, "keep stdin open and attach to the container")
	f.BoolVarP(&o.tty, "tty", "t", false, "allocate a TTY")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "only print output from the container")
	f.BoolVar(&o.attach, "attach", false, "wait for the container to start and attach to it; implied by -i")
	f.BoolVar(&o.args, "arguments-only", false, "pass the arguments after -- as args instead of the command")
	c.complete(cmd, "container") // names of existing containers are not valid
	fixed(cmd, "container")
	if err := cmd.RegisterFlagCompletionFunc("target", c.completeContainers); err != nil {
		panic(err) // registered twice: a programming error
	}
	fixed(cmd, "profile", "general", "baseline", "restricted", "netadmin", "sysadmin")
	fixed(cmd, "image-pull-policy", "Always", "IfNotPresent", "Never")
	return cmd
}

func (o debugOptions) start(cmd *cobra.Command, c *factory, args []string) error {
	if o.image == "" {
		return errors.New("--image is required")
	}
	t, err := targetOf(cmd, o.namespace, args[0])
	if err != nil {
		return err
	}
	add, err := o.ephemeral(args[1:])
	if err != nil {
		return err
	}
	// Piped input ends, and the container must see the end. A terminal can be attached again.
	add.StdinOnce = o.stdin && terminalOf(cmd.InOrStdin()) == nil
	client, err := c.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Debug(cmd.Context(), t.namespace, t.name, add); err != nil {
		return err
	}
	if o.container == "" && !o.quiet {
		o.note(cmd, fmt.Sprintf("Defaulting debug container name to %s.", add.Name))
	}
	if !o.stdin && !o.attach {
		return nil
	}
	pod, err := waitStarted(cmd.Context(), client, t, add.Name)
	if err != nil {
		return err
	}
	if !o.stdin ||
		ephemeralStatus(
			pod,
			add.Name,
		).State.Terminated != nil { // the log contains the complete output and ends with the container
		return client.Logs(
			cmd.Context(),
			nodeapi.LogRequest{Namespace: t.namespace, Pod: t.name, Container: add.Name, Follow: true},
			cmd.OutOrStdout(),
			cmd.ErrOrStderr(),
		)
	}
	return o.attachOptions.run(cmd, client, pod, add.Name)
}

// ephemeral returns the container described by the flags.
func (o debugOptions) ephemeral(command []string) (corev1.EphemeralContainer, error) {
	c := corev1.EphemeralContainer{TargetContainerName: o.target}
	c.Name, c.Image, c.ImagePullPolicy = o.container, o.image, corev1.PullPolicy(o.pull)
	c.Stdin, c.TTY = o.stdin, o.tty
	rights, err := profileContext(o.profile)
	if err != nil {
		return c, err
	}
	c.SecurityContext = rights
	if c.Name == "" {
		c.Name = "debugger-" + randomName(5)
	}
	if o.args {
		c.Args = command
	} else {
		c.Command = command
	}
	for _, e := range o.env {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			return c, fmt.Errorf("--env %q must be NAME=VALUE", e)
		}
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
	return c, nil
}

// profileContext returns the security context of a profile, with the names of kubectl.
func profileContext(profile string) (*corev1.SecurityContext, error) {
	add := func(names ...corev1.Capability) *corev1.SecurityContext {
		return &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: names}}
	}
	switch profile {
	case "general":
		return add("SYS_PTRACE"), nil
	case "baseline":
		return nil, nil
	case "restricted":
		return &corev1.SecurityContext{
			RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}, nil
	case "netadmin":
		return add("NET_ADMIN", "NET_RAW"), nil
	case "sysadmin":
		return &corev1.SecurityContext{Privileged: new(true)}, nil
	}
	return nil, fmt.Errorf(
		"--profile accepts only general, baseline, restricted, netadmin and sysadmin, not %q",
		profile,
	)
}

// randomName returns letters and digits that form no words.
func randomName(n int) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	var b strings.Builder
	for range n {
		b.WriteByte(letters[rand.IntN(len(letters))])
	}
	return b.String()
}

// waitStarted waits until an ephemeral container runs or has terminated. It returns an error if the
// container cannot be started.
func waitStarted(ctx context.Context, client *nodeapi.Client, t target, name string) (*corev1.Pod, error) {
	var found *corev1.Pod
	stop := errors.New("seen")
	err := client.WatchPods(ctx, nodeapi.PodsRequest{Namespace: t.namespace}, func(e nodeapi.PodEvent) error {
		if e.Pod == nil || e.Pod.Name != t.name {
			return nil
		}
		if e.Type == nodeapi.Deleted {
			return fmt.Errorf("pod %s was deleted", t.name)
		}
		if phase := e.Pod.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			return fmt.Errorf("pod %s has terminated", t.name)
		}
		st := ephemeralStatus(e.Pod, name)
		if w := st.State.Waiting; w != nil &&
			!slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, w.Reason) {
			return fmt.Errorf("container %s cannot be started: %s: %s", name, w.Reason, w.Message)
		}
		if st.State.Running == nil && st.State.Terminated == nil {
			return nil
		}
		found = e.Pod
		return stop
	})
	switch {
	case found != nil:
		return found, nil
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, errors.New("watch closed by the agent")
}

func ephemeralStatus(p *corev1.Pod, name string) corev1.ContainerStatus {
	for _, st := range p.Status.EphemeralContainerStatuses {
		if st.Name == name {
			return st
		}
	}
	return corev1.ContainerStatus{}
}
