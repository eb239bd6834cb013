package placements

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"berth/podspec"
)

const (
	podsPerCluster = 30
	// settleTime is how long kube-scheduler gets to observe objects of other kinds than pods.
	settleTime = 400 * time.Millisecond
	// victimTime is how long no further victim of a preemption must appear.
	victimTime  = 300 * time.Millisecond
	pollTime    = 5 * time.Millisecond
	stepTimeout = 30 * time.Second
)

// Options select the clusters.
type Options struct {
	First, Count uint64 // seeds
	// Log is the path of the log of kube-scheduler, at verbosity 10.
	Log    string
	Report io.Writer
}

// Summary counts decisions.
type Summary struct {
	Different int // clusters with a difference
	// Bound, Scored, Rejected and Preempting are equal decisions. Scored are those of Bound with more than one feasible
	// node. Gated are pods whose gates were removed, and Nominated those of them that had a nominated node.
	Bound, Scored, Rejected, Preempting, Gated, Nominated int
}

// runner plays clusters to a control plane with kube-scheduler. Berth's scheduler is responsible for few pods only.
type runner struct {
	client kubernetes.Interface
	log    schedulerLog
	Summary
}

// Run plays the clusters one after another and reports the differences. The server runs no controllers that change
// nodes or pods.
func Run(ctx context.Context, config *rest.Config, o Options) (Summary, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Summary{}, err
	}
	schedulerCtx, cancel := context.WithCancel(ctx)
	wait, err := runScheduler(schedulerCtx, client)
	if err != nil {
		cancel()
		return Summary{}, err
	}
	defer wait()
	defer cancel()
	r := &runner{client: client, log: schedulerLog{path: o.Log}}
	for name, value := range priorities {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		if name == neverPreempts {
			class.PreemptionPolicy = new(corev1.PreemptNever)
		}
		if _, err := client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return r.Summary, err
		}
	}
	for seed := o.First; seed < o.First+o.Count; seed++ {
		report, err := r.play(ctx, seed)
		if err != nil {
			return r.Summary, fmt.Errorf("seed %d: %w", seed, err)
		}
		if report != "" {
			r.Different++
			fmt.Fprintf(o.Report, "seed %d: %s\n", seed, report)
		}
	}
	return r.Summary, nil
}

// play plays one cluster up to the first difference, which it returns.
func (r *runner) play(ctx context.Context, seed uint64) (report string, err error) {
	random := rand.New(rand.NewPCG(seed, 0))
	c := newCluster(seed, random)
	defer func() { err = errors.Join(err, r.remove(context.WithoutCancel(ctx), c)) }()
	if err := r.create(ctx, c); err != nil {
		return "", err
	}
	s := &state{cluster: c, pods: map[types.UID]*corev1.Pod{}}
	for i := range podsPerCluster {
		pod := newPod(c, i, random)
		diff, err := r.step(ctx, s, pod, i, random)
		if err != nil {
			return "", fmt.Errorf("pod %d: %w", i, err)
		}
		if diff != "" {
			return fmt.Sprintf("pod %d of %d nodes:\n%s%+v", i, len(c.nodes), diff, pod.Spec), nil
		}
	}
	for s.gated != nil {
		if diff, err := r.openGate(ctx, s); err != nil || diff != "" {
			return diff, err
		}
	}
	return "", nil
}

// step creates a pod, with gates or without, and compares the decisions about it. It may remove a gate of an earlier
// one. One pod has gates at a time.
func (r *runner) step(ctx context.Context, s *state, pod *corev1.Pod, number int, random *rand.Rand) (string, error) {
	if s.gated == nil && chance(random, 20) {
		return "", r.createGated(ctx, s, pod, number, random)
	}
	created, err := r.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if diff, err := r.decide(ctx, s, created, number); err != nil || diff != "" {
		return diff, err
	}
	if diff, err := r.checkGated(ctx, s); err != nil || diff != "" {
		return diff, err
	}
	if s.gated != nil && chance(random, 40) {
		return r.openGate(ctx, s)
	}
	return "", nil
}

// create creates the objects of a cluster, with the status of nodes and budgets.
func (r *runner) create(ctx context.Context, c *cluster) (err error) {
	core := r.client.CoreV1()
	for i, ns := range c.namespaces {
		if c.namespaces[i], err = core.Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for i, n := range c.nodes {
		if c.nodes[i], err = r.createNode(ctx, n); err != nil {
			return err
		}
	}
	for i, s := range c.services {
		if c.services[i], err = core.Services(s.Namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for i, s := range c.sets {
		if c.sets[i], err = r.client.AppsV1().ReplicaSets(s.Namespace).Create(ctx, s,
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for i, b := range c.budgets {
		budgets := r.client.PolicyV1().PodDisruptionBudgets(b.Namespace)
		created, err := budgets.Create(ctx, b, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		created.Status = b.Status
		created.Status.ObservedGeneration = created.Generation
		if c.budgets[i], err = budgets.UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	for _, ns := range c.namespaces {
		if err := until(ctx, func() (bool, error) {
			_, err := core.ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
			return err == nil, ignoreNotFound(err)
		}); err != nil {
			return fmt.Errorf("service account: %w", err)
		}
	}
	return sleep(ctx, settleTime)
}

func (r *runner) createNode(ctx context.Context, n *corev1.Node) (*corev1.Node, error) {
	nodes := r.client.CoreV1().Nodes()
	created, err := nodes.Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		created.Spec.Taints = n.Spec.Taints // admission has added that the node is not ready
		created, err = nodes.Update(ctx, created, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		created.Status = n.Status
		created, err = nodes.UpdateStatus(ctx, created, metav1.UpdateOptions{})
		return err
	})
	return created, err
}

// decide compares the decisions about a pod that was created or whose gates were removed.
func (r *runner) decide(ctx context.Context, s *state, pod *corev1.Pod, number int) (diff string, err error) {
	d, err := r.wait(ctx, s, pod)
	if err != nil {
		return "", err
	}
	if diff := s.compare(pod, d); diff != "" {
		return diff, nil
	}
	if pod.Status.NominatedNodeName != "" {
		r.Nominated++
	}
	if d.node != "" {
		r.Bound++
		if len(d.scores) > 0 {
			r.Scored++
		}
		return "", r.start(ctx, s, pod, number)
	}
	if !d.preempts() {
		r.Rejected++
		return "", r.delete(ctx, pod)
	}
	r.Preempting++
	if err := r.clearNomination(ctx, s, pod, d.nominated); err != nil {
		return "", err
	}
	return r.finishPreemption(ctx, s, pod, d, number)
}

// clearNomination waits until the pod with gates has lost its nomination for the node of a preemption, if it has a
// lower priority than the preemptor.
func (r *runner) clearNomination(ctx context.Context, s *state, preemptor *corev1.Pod, node string) (err error) {
	if s.gated == nil || s.gated.pod.Status.NominatedNodeName != node ||
		podspec.Priority(s.gated.pod) >= podspec.Priority(preemptor) {
		return nil
	}
	pod := s.gated.pod
	if err := until(ctx, func() (bool, error) {
		s.gated.pod, err = r.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && s.gated.pod.Status.NominatedNodeName == "", err
	}); err != nil {
		return fmt.Errorf("%s keeps its nomination for %s: %w", pod.Name, node, err)
	}
	return nil
}

// finishPreemption removes the victims, so that the pod gets a node, and compares that decision too. kube-scheduler
// tries again when the first of several victims is gone. Another node may fit then, while the nominated one does not
// yet.
func (r *runner) finishPreemption(ctx context.Context, s *state, pod *corev1.Pod, d decision, number int) (string,
	error) {
	nominated := pod.DeepCopy()
	nominated.Status.NominatedNodeName = d.nominated
	var winners []string
	for _, victim := range d.victims {
		for uid, p := range s.pods {
			if key(p) != victim {
				continue
			}
			if err := r.delete(ctx, p); err != nil {
				return "", err
			}
			delete(s.pods, uid)
		}
		winners = append(winners, s.winners(nominated)...)
	}
	bound, err := r.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if err := until(ctx, func() (bool, error) {
		bound, err = r.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && bound.Spec.NodeName != "", err
	}); err != nil {
		return "", fmt.Errorf("the pod gets no node after a preemption: %w", err)
	}
	if !slices.Contains(winners, bound.Spec.NodeName) {
		return fmt.Sprintf("after the preemption:\n- binds to %s\n+ binds to %v\n", bound.Spec.NodeName, winners), nil
	}
	return "", r.start(ctx, s, bound, number)
}

// wait waits for the decision of kube-scheduler.
func (r *runner) wait(ctx context.Context, s *state, pod *corev1.Pod) (d decision, err error) {
	pods := r.client.CoreV1().Pods(pod.Namespace)
	if err := until(ctx, func() (bool, error) {
		p, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		d.node, d.nominated = p.Spec.NodeName, p.Status.NominatedNodeName
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				d.message = c.Message
			}
		}
		return d.node != "" || d.message != "", nil
	}); err != nil {
		return d, fmt.Errorf("wait for kube-scheduler: %w", err)
	}
	if d.node != "" {
		d.scores, err = r.log.scores(key(pod))
		return d, err
	}
	if !d.preempts() {
		return d, nil
	}
	for changed := time.Now(); time.Since(changed) < victimTime; {
		var victims []string
		for _, p := range s.pods {
			live, err := r.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && live.DeletionTimestamp != nil {
				victims = append(victims, key(p))
			} else if err != nil {
				return d, err
			}
		}
		slices.Sort(victims)
		if !slices.Equal(victims, d.victims) || len(victims) == 0 {
			d.victims, changed = victims, time.Now()
		}
		if err := sleep(ctx, pollTime); err != nil {
			return d, err
		}
	}
	return d, nil
}

// start reports that a bound pod runs. Each pod has another start time, which preemption considers.
func (r *runner) start(ctx context.Context, s *state, pod *corev1.Pod, number int) error {
	pods := r.client.CoreV1().Pods(pod.Namespace)
	live, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	at := metav1.NewTime(time.Unix(1_700_000_000+int64(number)*60, 0))
	live.Status.Phase, live.Status.StartTime = corev1.PodRunning, &at
	if live, err = pods.UpdateStatus(ctx, live, metav1.UpdateOptions{}); err != nil {
		return err
	}
	s.pods[live.UID] = live
	return nil
}

func (r *runner) delete(ctx context.Context, pod *corev1.Pod) error {
	return ignoreNotFound(r.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID}}))
}

// remove removes a cluster.
func (r *runner) remove(ctx context.Context, c *cluster) (err error) {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, ns := range c.namespaces {
		err = errors.Join(err, r.client.CoreV1().Pods(ns.Name).DeleteCollection(ctx, now, metav1.ListOptions{}),
			r.client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}))
	}
	for _, n := range c.nodes {
		err = errors.Join(err, ignoreNotFound(r.client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{})))
	}
	return err
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func until(ctx context.Context, done func() (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, pollTime, stepTimeout, true, func(context.Context) (bool, error) {
		return done()
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
