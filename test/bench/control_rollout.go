package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"berth/test/simnodes"
)

const (
	rolloutPods  = 1000
	rolloutNodes = 100
	// rolloutParallelism is the number of pods of the Job that run at the same time.
	rolloutParallelism = 100
	jobImage           = "example.com/job:1"
	// rolloutTimeout limits each step.
	rolloutTimeout = 5 * time.Minute
	// rolloutRest is the time before memory is measured.
	rolloutRest = 10 * time.Second
)

// rolloutTimes are the times and the memory of one Deployment.
type rolloutTimes struct {
	create, update, remove time.Duration
	cpu                    time.Duration // of all programs, for the three steps
	server, peers          int64         // resident memory after the update, in bytes
	job, jobCPU            time.Duration // of a Job after the Deployment
}

// controlRollout measures a Deployment of 1,000 pods on 100 simulated nodes: its rollout, an update and its deletion,
// and after it a Job with 1,000 indexes, whose pods succeed at once.
// berth-control with its own controllers alternates with the components of Kubernetes on berth-control.
func (b *bench) controlRollout(ctx context.Context) error {
	var own, peers []rolloutTimes
	for range *rounds {
		for _, side := range []struct {
			start func(context.Context) (*controlPlane, error)
			all   *[]rolloutTimes
		}{{startOwn, &own}, {startPeers, &peers}} {
			one, err := measureRollout(ctx, side.start)
			if err != nil {
				return err
			}
			*side.all = append(*side.all, one)
		}
	}
	for _, step := range []struct {
		what string
		of   func(rolloutTimes) time.Duration
	}{
		{"Deployment of 1000 pods rolled out", func(r rolloutTimes) time.Duration { return r.create }},
		{"Deployment of 1000 pods updated", func(r rolloutTimes) time.Duration { return r.update }},
		{"Deployment of 1000 pods deleted", func(r rolloutTimes) time.Duration { return r.remove }},
		{"Deployment of 1000 pods rolled out, updated and deleted: CPU of all programs",
			func(r rolloutTimes) time.Duration { return r.cpu }},
		{"Job of 1000 indexes completed", func(r rolloutTimes) time.Duration { return r.job }},
		{"Job of 1000 indexes completed: CPU of all programs",
			func(r rolloutTimes) time.Duration { return r.jobCPU }},
	} {
		mine, theirs := median(timesOf(own, step.of)), median(timesOf(peers, step.of))
		b.add(step.what+", beside kube-controller-manager and kube-scheduler", ms(mine), ms(theirs),
			ratio(mine, theirs), "<= 1.00 x")
	}
	memory := func(all []rolloutTimes, of func(rolloutTimes) int64) int64 {
		return int64(median(timesOf(all, func(r rolloutTimes) time.Duration { return time.Duration(of(r)) })))
	}
	bare := memory(peers, func(r rolloutTimes) int64 { return r.server })
	with := memory(own, func(r rolloutTimes) int64 { return r.server })
	theirs := memory(peers, func(r rolloutTimes) int64 { return r.peers })
	b.add("memory of all programs with these pods, beside berth-control with the two", mib(with), mib(bare+theirs),
		ratio(time.Duration(with), time.Duration(bare+theirs)), "<= 1.00 x")
	// A server with its own controllers serves fewer watches, and may need less memory than without.
	b.add("memory of controllers and scheduler: growth of berth-control, beside the two", mib(with-bare), mib(theirs),
		ratio(time.Duration(max(0, with-bare)), time.Duration(theirs)), "<= 1.00 x")
	return nil
}

func timesOf(all []rolloutTimes, of func(rolloutTimes) time.Duration) (out []time.Duration) {
	for _, r := range all {
		out = append(out, of(r))
	}
	return out
}

// measureRollout starts a control plane, plays the Deployment and stops the control plane.
func measureRollout(ctx context.Context, start func(context.Context) (*controlPlane, error)) (r rolloutTimes,
	err error) {
	p, err := start(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	factory := informers.NewSharedInformerFactory(p.client, 0)
	names := make([]string, rolloutNodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%d", i)
	}
	nodes, err := simnodes.New(p.client, factory.Core().V1().Pods(), simnodes.Options{Names: names,
		Capacity: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"),
			"pods": resource.MustParse("110")}, Report: func(pod *corev1.Pod) {
			if pod.Spec.Containers[0].Image == jobImage {
				simnodes.Succeed(pod)
				return
			}
			simnodes.Serve(pod)
		}})
	if err != nil {
		return r, err
	}
	pods, deployments := factory.Core().V1().Pods().Informer(), factory.Apps().V1().Deployments().Informer()
	jobs := factory.Batch().V1().Jobs().Informer()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, deployments.HasSynced, jobs.HasSynced) {
		return r, errors.Join(errors.New("informers have not synced"), ctx.Err())
	}
	if err := nodes.Register(ctx); err != nil {
		return r, err
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { nodes.Run(ctx) })
	if err = p.playDeployment(ctx, &r, pods.GetStore(), deployments.GetStore()); err == nil {
		err = p.playJob(ctx, &r, jobs.GetStore())
	}
	return r, err
}

// playDeployment creates, updates and deletes the Deployment. A small one is rolled out first, so that all caches are
// filled and all connections are open.
func (p *controlPlane) playDeployment(ctx context.Context, r *rolloutTimes, pods, deployments cache.Store) error {
	var ignored, before time.Duration
	cpu := func(add *time.Duration) func() error {
		return func() (err error) { *add, err = p.cpu(); return err }
	}
	now := func() bool { return true }
	complete := func(name string, replicas int32) func() bool {
		return func() bool {
			obj, found, err := deployments.GetByKey("default/" + name)
			d, is := obj.(*appsv1.Deployment)
			return err == nil && found && is && d.Status.ObservedGeneration == d.Generation &&
				d.Status.Replicas == replicas && d.Status.UpdatedReplicas == replicas &&
				d.Status.AvailableReplicas == replicas
		}
	}
	for _, step := range []struct {
		took *time.Duration
		do   func() error
		done func() bool
	}{
		{&ignored, func() error { return p.createDeployment(ctx, "warm", 1) }, complete("warm", 1)},
		{&ignored, func() error { return p.deleteDeployment(ctx, "warm") },
			func() bool { return len(pods.ListKeys()) == 0 }},
		{nil, cpu(&before), now},
		{&r.create, func() error { return p.createDeployment(ctx, "web", rolloutPods) }, complete("web", rolloutPods)},
		{&r.update, func() error {
			d, err := p.client.AppsV1().Deployments("default").Patch(ctx, "web", types.StrategicMergePatchType,
				[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example.com/web:2"}]}}}}`),
				metav1.PatchOptions{})
			if err == nil {
				err = waitFor(ctx, func() bool { // the informer has observed the new generation
					obj, _, _ := deployments.GetByKey("default/web")
					observed, is := obj.(*appsv1.Deployment)
					return is && observed.Generation >= d.Generation
				})
			}
			return err
		}, complete("web", rolloutPods)},
		{nil, func() error { return p.measureMemory(ctx, r) }, now},
		{&r.remove, func() error { return p.deleteDeployment(ctx, "web") },
			func() bool { return len(pods.ListKeys()) == 0 }},
		{nil, cpu(&r.cpu), now},
	} {
		start := time.Now()
		if err := step.do(); err != nil {
			return err
		}
		if err := waitFor(ctx, step.done); err != nil {
			return err
		}
		if step.took != nil {
			*step.took = time.Since(start)
		}
	}
	r.cpu -= before
	return nil
}

// playJob runs an Indexed Job to its end.
func (p *controlPlane) playJob(ctx context.Context, r *rolloutTimes, jobs cache.Store) error {
	before, err := p.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	_, err = p.client.BatchV1().Jobs("default").Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "count"},
		Spec: batchv1.JobSpec{Completions: new(int32(rolloutPods)), Parallelism: new(int32(rolloutParallelism)),
			CompletionMode: new(batchv1.IndexedCompletion),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{Name: "main", Image: jobImage}}}}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	err = waitFor(ctx, func() bool {
		obj, _, _ := jobs.GetByKey("default/count")
		j, is := obj.(*batchv1.Job)
		return is && j.Status.CompletionTime != nil
	})
	r.job = time.Since(start)
	if err != nil {
		return err
	}
	r.jobCPU, err = p.cpu()
	r.jobCPU -= before
	return err
}

func (p *controlPlane) measureMemory(ctx context.Context, r *rolloutTimes) (err error) {
	if err = pause(ctx, rolloutRest); err != nil {
		return err
	}
	if r.server, err = p.rss(); err != nil {
		return err
	}
	r.peers, err = p.peersRSS()
	return err
}

func (p *controlPlane) createDeployment(ctx context.Context, name string, replicas int32) error {
	labels := map[string]string{"app": name}
	_, err := p.client.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/web:1",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						"cpu": resource.MustParse("10m")}}}}}}}}, metav1.CreateOptions{})
	return err
}

func (p *controlPlane) deleteDeployment(ctx context.Context, name string) error {
	background := metav1.DeletePropagationBackground
	return p.client.AppsV1().Deployments("default").Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &background})
}

// waitFor waits until done returns true.
func waitFor(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, rolloutTimeout)
	defer cancel()
	for !done() {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("rollout: %w", err)
		}
	}
	return nil
}
