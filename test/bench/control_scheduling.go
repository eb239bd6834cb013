package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"berth/control/controllers"
	"berth/test/upstream"
)

const (
	scheduledPods  = 2000
	schedulingSets = 20 // ReplicaSets that the pods belong to
	// schedulingTimeout limits the time until all pods are bound.
	schedulingTimeout = 5 * time.Minute
)

// withoutWorkloads returns a value of --controllers without the scheduler and the controllers that change nodes or
// pods. further are put before it.
func withoutWorkloads(further ...string) string {
	list := append(further, "*")
	for _, name := range controllers.Names() {
		if name != controllers.ServiceAccounts && name != controllers.Namespaces {
			list = append(list, "-"+name)
		}
	}
	return strings.Join(list, ",")
}

// controlScheduling measures how many pods per second the scheduler binds: 2,000 waiting pods of 20 ReplicaSets on 100
// nodes, from the first to the last. berth-control's scheduler alternates with kube-scheduler on berth-control.
func (b *bench) controlScheduling(ctx context.Context) error {
	var own, peers []time.Duration
	for range *rounds {
		for _, side := range []struct {
			begin func(context.Context, *controlPlane) error
			all   *[]time.Duration
		}{
			{func(ctx context.Context, p *controlPlane) error {
				return p.restart(ctx, "--controllers", withoutWorkloads())
			}, &own},
			{startKubeScheduler, &peers},
		} {
			took, err := measureScheduling(ctx, side.begin)
			if err != nil {
				return err
			}
			*side.all = append(*side.all, took)
		}
	}
	rate := func(all []time.Duration) float64 { return (scheduledPods - 1) / median(all).Seconds() }
	b.add("pods bound per second, beside kube-scheduler", fmt.Sprintf("%.0f /s", rate(own)),
		fmt.Sprintf("%.0f /s", rate(peers)), fmt.Sprintf("%.2f x", rate(own)/rate(peers)), ">= 1.00 x")
	return nil
}

// startKubeScheduler starts kube-scheduler. The limits of its client do not bind.
func startKubeScheduler(ctx context.Context, p *controlPlane) error {
	programs, err := upstream.Build(ctx, "kube-scheduler")
	if err != nil {
		return err
	}
	return p.start(filepath.Join(programs, "kube-scheduler"), []string{"--kubeconfig",
		filepath.Join(p.controlServer.dir, "admin.kubeconfig"), "--leader-elect=false", "--kube-api-qps", "100000",
		"--kube-api-burst", "100000"})
}

// measureScheduling creates waiting pods, starts a scheduler, and returns the time from the first binding to the last.
func measureScheduling(ctx context.Context, begin func(context.Context, *controlPlane) error) (took time.Duration,
	err error) {
	p, err := newControlPlane(ctx, "--controllers", withoutWorkloads("-scheduler"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.createWaiting(ctx); err != nil {
		return 0, err
	}
	if err := begin(ctx, p); err != nil {
		return 0, err
	}
	return p.waitUntilBound(ctx)
}

// waitUntilBound waits until all pods are bound. It returns the time from the first binding to the last. If some pods
// are bound before the first is observed, it adds their share.
func (p *controlPlane) waitUntilBound(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, schedulingTimeout)
	defer cancel()
	factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithTweakListOptions(
		func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName!=" }))
	defer factory.Shutdown()
	defer cancel()
	var first, last time.Time // written by the informer, until done is closed
	early, bound, done := 0, 0, make(chan struct{})
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(_ any, isInInitialList bool) {
			if isInInitialList {
				early++
			} else {
				bound++
			}
			if last = time.Now(); first.IsZero() && !isInInitialList {
				first = last
			}
			if early+bound == scheduledPods {
				close(done)
			}
		}}); err != nil {
		return 0, err
	}
	factory.Start(ctx.Done())
	select {
	case <-done:
		return last.Sub(first) * (scheduledPods - 1) / time.Duration(max(1, bound-1)), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for bindings: %w", ctx.Err())
	}
}

// createWaiting creates nodes, ReplicaSets and their pods.
func (p *controlPlane) createWaiting(ctx context.Context) error {
	nodes := p.client.CoreV1().Nodes()
	for i := range rolloutNodes {
		n, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i),
			Labels: map[string]string{corev1.LabelHostname: fmt.Sprintf("node-%d", i),
				corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3)}}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = nil // admission has added that the node is not ready
		if n, err = nodes.Update(ctx, n, metav1.UpdateOptions{}); err != nil {
			return err
		}
		n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"),
			"pods": resource.MustParse("110")}
		n.Status.Allocatable = n.Status.Capacity
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if _, err := nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	var owners [schedulingSets]*appsv1.ReplicaSet
	for i := range owners {
		labels := map[string]string{"app": strconv.Itoa(i)}
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("set-%d", i)},
			Spec: appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/load:1"}}}}}}
		var err error
		owners[i], err = p.client.AppsV1().ReplicaSets("default").Create(ctx, set, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return p.parallel(ctx, scheduledPods, func(ctx context.Context, i int) error {
		owner := owners[i%schedulingSets]
		_, err := p.client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: owner.Spec.Selector.MatchLabels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner,
					appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/load:1",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					"cpu": resource.MustParse("10m")}}}}}}, metav1.CreateOptions{})
		return err
	})
}
