package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
)

func (c *factory) scale() *cobra.Command {
	var namespace string
	var replicas int32
	cmd := &cobra.Command{
		Use:   "scale TYPE/NAME --replicas COUNT",
		Short: "Set the number of replicas of a workload until its file changes",
		Long: `Set the number of replicas of a Deployment or StatefulSet of a manifest file. The number is stored on
this node and stays in effect over restarts, until the file changes. "berth get" shows it.`,
		Example: `  berth scale deployment/web --replicas 5`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("replicas") {
				return errors.New("required flag --replicas not set")
			}
			return c.editWorkload(cmd, namespace, args, nodeapi.WorkloadEdit{
				Command: nodeapi.ScaleWorkload, Replicas: replicas,
			}, "scaled")
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the workload")
	cmd.Flags().Int32Var(&replicas, "replicas", 0, "the new number of replicas")
	return cmd
}

// editWorkload sends a change of a workload and prints what was done.
func (c *factory) editWorkload(cmd *cobra.Command, namespace string, args []string, edit nodeapi.WorkloadEdit,
	done string) error {
	kind, name, err := workloadTarget(args)
	if err != nil {
		return err
	}
	client, err := c.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	edit.Kind, edit.Namespace, edit.Name = kind, namespace, name
	result, err := client.EditWorkload(cmd.Context(), edit)
	if err != nil {
		return err
	}
	if result.Skipped {
		done = fmt.Sprintf("skipped rollback (current template already matches revision %d)", result.Revision)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), outputName(nodeapi.Workload{Kind: kind, Name: name})+" "+done)
	return err
}

func (c *factory) rollout() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Manage the rollout of a workload of a manifest file",
	}
	var namespace string
	cmd.PersistentFlags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the workload")
	change := func(use, short, done string, edit nodeapi.WorkloadEdit) *cobra.Command {
		return &cobra.Command{
			Use: use + " TYPE/NAME", Short: short,
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.editWorkload(cmd, namespace, args, edit, done)
			},
		}
	}
	var revision int64
	undo := &cobra.Command{
		Use:   "undo TYPE/NAME",
		Short: "Roll back to an earlier revision until the file changes",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.editWorkload(cmd, namespace, args, nodeapi.WorkloadEdit{
				Command: nodeapi.UndoWorkload, Revision: revision,
			}, "rolled back")
		},
	}
	undo.Flags().Int64Var(&revision, "to-revision", 0, "the revision to roll back to; 0 is the previous one")
	cmd.AddCommand(
		c.rolloutStatus(&namespace), c.rolloutHistory(&namespace), undo,
		change("pause", "Pause the rollout of a Deployment until the file changes", "paused",
			nodeapi.WorkloadEdit{Command: nodeapi.PauseWorkload}),
		change("resume", "Resume the rollout of a paused Deployment", "resumed",
			nodeapi.WorkloadEdit{Command: nodeapi.ResumeWorkload}),
		change("restart", "Replace all pods of a workload by a rollout", "restarted",
			nodeapi.WorkloadEdit{Command: nodeapi.RestartWorkload}),
	)
	return cmd
}

func (c *factory) rolloutStatus(namespace *string) *cobra.Command {
	watch := true
	cmd := &cobra.Command{
		Use:   "status TYPE/NAME",
		Short: "Show the progress of a rollout and wait for its end",
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, err := workloadTarget(args)
			if err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			return followRollout(cmd.Context(), client, kind, *namespace, name, watch, func(line string) error {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), clean(line))
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", true, "wait for the end of the rollout")
	return cmd
}

// followRollout prints each change of the progress of a rollout until it is complete.
func followRollout(ctx context.Context, client *nodeapi.Client, kind, namespace, name string, watch bool,
	write func(string) error) error {
	last := ""
	for first := true; ; first = false {
		w, err := findWorkload(ctx, client, kind, namespace, name, !first)
		if err != nil {
			return err
		}
		text, done, err := rolloutProgress(w)
		if err != nil {
			return err
		}
		if text != last {
			if err := write(text); err != nil {
				return err
			}
		}
		if done || !watch {
			return nil
		}
		last = text
	}
}

// rolloutProgress describes the progress of a rollout as "kubectl rollout status" does.
func rolloutProgress(w nodeapi.Workload) (text string, done bool, err error) {
	switch w.Kind {
	case "Deployment":
		var d appsv1.Deployment
		if err := json.Unmarshal(w.Object, &d); err != nil {
			return "", false, err
		}
		return deploymentProgress(&d)
	case "StatefulSet":
		var s appsv1.StatefulSet
		if err := json.Unmarshal(w.Object, &s); err != nil {
			return "", false, err
		}
		return statefulSetProgress(&s)
	case "DaemonSet":
		var s appsv1.DaemonSet
		if err := json.Unmarshal(w.Object, &s); err != nil {
			return "", false, err
		}
		return daemonSetProgress(&s)
	}
	return "", false, fmt.Errorf("rollout status is not supported for a %s", w.Kind)
}

// errNoRollout is the error about a workload whose pods are only updated when a user deletes them.
var errNoRollout = fmt.Errorf("rollout status is only available for %s strategy type",
	appsv1.RollingUpdateStatefulSetStrategyType)

func statefulSetProgress(s *appsv1.StatefulSet) (text string, done bool, err error) {
	n, replicas := s.Status, orOne(s.Spec.Replicas)
	if s.Spec.UpdateStrategy.Type != appsv1.RollingUpdateStatefulSetStrategyType {
		return "", true, errNoRollout
	}
	switch rolling := s.Spec.UpdateStrategy.RollingUpdate; {
	case n.ObservedGeneration == 0 || n.ObservedGeneration < s.Generation:
		return "Waiting for statefulset spec update to be observed...", false, nil
	case n.ReadyReplicas < replicas:
		return fmt.Sprintf("Waiting for %d pods to be ready...", replicas-n.ReadyReplicas), false, nil
	case rolling != nil:
		// Pods below the partition keep the old revision, so the revisions of the status stay different.
		if rolling.Partition != nil && n.UpdatedReplicas < replicas-*rolling.Partition {
			return fmt.Sprintf("Waiting for partitioned roll out to finish: %d out of %d new pods have been updated...",
				n.UpdatedReplicas, replicas-*rolling.Partition), false, nil
		}
		return fmt.Sprintf("partitioned roll out complete: %d new pods have been updated...",
			n.UpdatedReplicas), true, nil
	case n.UpdateRevision != n.CurrentRevision:
		return fmt.Sprintf("waiting for statefulset rolling update to complete %d pods at revision %s...",
			n.UpdatedReplicas, n.UpdateRevision), false, nil
	}
	return fmt.Sprintf("statefulset rolling update complete %d pods at revision %s...", n.CurrentReplicas,
		n.CurrentRevision), true, nil
}

func daemonSetProgress(s *appsv1.DaemonSet) (text string, done bool, err error) {
	n := s.Status
	if s.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		return "", true, errNoRollout
	}
	switch {
	case n.ObservedGeneration < s.Generation:
		return "Waiting for daemon set spec update to be observed...", false, nil
	case n.UpdatedNumberScheduled < n.DesiredNumberScheduled:
		text = fmt.Sprintf("%d out of %d new pods have been updated...", n.UpdatedNumberScheduled,
			n.DesiredNumberScheduled)
	case n.NumberAvailable < n.DesiredNumberScheduled:
		text = fmt.Sprintf("%d of %d updated pods are available...", n.NumberAvailable, n.DesiredNumberScheduled)
	default:
		return fmt.Sprintf("daemon set %q successfully rolled out", s.Name), true, nil
	}
	return fmt.Sprintf("Waiting for daemon set %q rollout to finish: %s", s.Name, text), false, nil
}

func deploymentProgress(d *appsv1.Deployment) (text string, done bool, err error) {
	s, replicas := d.Status, orOne(d.Spec.Replicas)
	if s.ObservedGeneration < d.Generation {
		return "Waiting for deployment spec update to be observed...", false, nil
	}
	for _, c := range s.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Reason == "ProgressDeadlineExceeded" {
			return "", false, fmt.Errorf("deployment %q exceeded its progress deadline", d.Name)
		}
	}
	switch {
	case s.UpdatedReplicas < replicas:
		text = fmt.Sprintf("%d out of %d new replicas have been updated...", s.UpdatedReplicas, replicas)
	case s.Replicas > s.UpdatedReplicas:
		text = fmt.Sprintf("%d old replicas are pending termination...", s.Replicas-s.UpdatedReplicas)
	case s.AvailableReplicas < s.UpdatedReplicas:
		text = fmt.Sprintf("%d of %d updated replicas are available...", s.AvailableReplicas, s.UpdatedReplicas)
	default:
		return fmt.Sprintf("deployment %q successfully rolled out", d.Name), true, nil
	}
	return fmt.Sprintf("Waiting for deployment %q rollout to finish: %s", d.Name, text), false, nil
}

func (c *factory) rolloutHistory(namespace *string) *cobra.Command {
	var revision int64
	cmd := &cobra.Command{
		Use:   "history TYPE/NAME",
		Short: "List the revisions of a workload",
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, err := workloadTarget(args)
			if err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			w, err := findWorkload(cmd.Context(), client, kind, *namespace, name, false)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), outputName(w)); err != nil {
				return err
			}
			rows := [][]string{{"REVISION", "CHANGE-CAUSE", "IMAGES"}}
			for _, r := range w.Revisions {
				if revision != 0 && r.Revision != revision {
					continue
				}
				var images []string
				for i := range r.Template.Spec.Containers {
					images = append(images, r.Template.Spec.Containers[i].Image)
				}
				rows = append(rows, []string{fmt.Sprint(r.Revision), orNone(r.ChangeCause), strings.Join(images, ",")})
			}
			if revision != 0 && len(rows) == 1 {
				return fmt.Errorf("unable to find the specified revision %d", revision)
			}
			t := table{w: cmd.OutOrStdout()}
			return t.print(rows...)
		},
	}
	cmd.Flags().Int64Var(&revision, "revision", 0, "show only this revision")
	return cmd
}
