package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// withPair runs a measurement on a new pair.
func (b *bench) withPair(take func(context.Context, *pair) error) func(context.Context) error {
	return func(ctx context.Context) error {
		p, err := b.newPair(ctx)
		if err != nil {
			return err
		}
		if err = take(ctx, p); err != nil {
			log, _ := os.ReadFile(p.log())
			err = fmt.Errorf("%w\n%s\n%s", err, log, b.agent.Log())
		}
		return errors.Join(err, p.close(ctx))
	}
}

// pairWarm is warm with pods that are created through the API, bound by the scheduler and observed by a
// watch.
func (b *bench) pairWarm(ctx context.Context, p *pair) error {
	x, err := b.newBaseline(ctx)
	if err != nil {
		return err
	}
	var agentTimes, limit, bound, agent, reported []time.Duration
	for i := range 6 * *rounds {
		took, err := x.burst(ctx, 1, 1, "sleep", "1h")
		if err != nil {
			return err
		}
		if _, err := x.removeAll(ctx); err != nil {
			return err
		}
		start := time.Now()
		w, err := p.burst(ctx, 0, 1, "sleep", "1h")
		if err != nil {
			return err
		}
		first, last, err := p.spans(ctx, "p000")
		if err != nil {
			return err
		}
		if err := p.deleteBurst(ctx, 1); err != nil {
			return err
		}
		if i == 0 { // the first round warms up
			continue
		}
		agentTimes, limit, bound = append(agentTimes, w.running), append(limit, took), append(bound, w.bound)
		agent = append(agent, last.Sub(first))
		reported = append(reported, start.Add(w.running).Sub(last))
	}
	b.add("one warm pod through berth-control, create -> Running observed, median", ms(median(agentTimes)),
		ms(median(limit)), ratio(median(agentTimes), median(limit)), "<= 1.20 x")
	b.add("of it: create -> bound to the node observed, median", ms(median(bound)), "-", "", "")
	b.add("of it: first sync of the agent -> container started, median", ms(median(agent)), ms(median(limit)), "", "")
	b.add("of it: container started -> Running observed, median", ms(median(reported)), "-", "", "")
	return nil
}

// spans returns the times of a pod's first sync and of its last container start.
func (p *pair) spans(ctx context.Context, name string) (first, last time.Time, err error) {
	t, err := p.local.Timeline(ctx, "default", name)
	if err != nil {
		return first, last, err
	}
	for _, s := range t.Spans {
		if first.IsZero() {
			first = s.Start
		}
		if s.Name == "start" {
			last = s.End
		}
	}
	if last.IsZero() {
		return first, last, fmt.Errorf("no container start in the timeline of %s: %+v", name, t.Spans)
	}
	return first, last, nil
}

// pairBurst is burst with pods that are created through the API.
func (b *bench) pairBurst(ctx context.Context, p *pair) error {
	x, err := b.newBaseline(ctx)
	if err != nil {
		return err
	}
	var agentTimes, limit, bound []time.Duration
	for range *rounds {
		took, err := x.burst(ctx, *burst, 8, "ignore-term", ",", "sleep", "1h")
		if err != nil {
			return err
		}
		if _, err := x.removeAll(ctx); err != nil {
			return err
		}
		w, err := p.burst(ctx, 0, *burst, "ignore-term", ",", "sleep", "1h")
		if err != nil {
			return err
		}
		if err := p.deleteBurst(ctx, *burst); err != nil {
			return err
		}
		agentTimes, limit, bound = append(agentTimes, w.running), append(limit, took), append(bound, w.bound)
	}
	b.add(fmt.Sprintf("%d pods at once through berth-control, create -> last Running observed, median of %d", *burst,
		*rounds), ms(median(agentTimes)), ms(median(limit)), ratio(median(agentTimes), median(limit)), "<= 1.20 x")
	b.add("of it: create -> last bound to the node observed, median", ms(median(bound)), "-", "", "")
	return nil
}

// pairMemory measures the memory of a joined agent and of its server.
func (b *bench) pairMemory(ctx context.Context, p *pair) error {
	have := 0
	for _, step := range []struct {
		pods int
		goal string
	}{{0, "<= 30 MiB"}, {50, "<= 38 MiB"}, {110, "<= 45 MiB"}} {
		if step.pods > have {
			if _, err := p.burst(ctx, have, step.pods, "sleep", "1h"); err != nil {
				return err
			}
			have = step.pods
		}
		if err := pause(ctx, idleWait); err != nil {
			return err
		}
		agent, err := b.rss()
		if err != nil {
			return err
		}
		server, err := rssOf(p.server.Process.Pid)
		if err != nil {
			return err
		}
		b.add(fmt.Sprintf("resident memory, agent joined, %d pods", have), mib(agent), "-", "", step.goal)
		b.add(fmt.Sprintf("resident memory of berth-control, one node, %d pods", have), mib(server), "-", "",
			"<= 120 MiB")
	}
	return p.deleteBurst(ctx, have)
}

// pairConfigMap measures the time from the change of a ConfigMap in the API to the changed file in a
// running pod.
func (b *bench) pairConfigMap(ctx context.Context, p *pair) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm"}, Data: map[string]string{"key": "v0"}}
	maps := p.kube.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		return err
	}
	pod := newPod("p000", "sleep", "1h")
	pod.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	pod, err := p.kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := p.waitFor(ctx, 1,
		func(_ watch.Event, pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }); err != nil {
		return err
	}
	file := filepath.Join(b.agent.RootDir, "pods", string(pod.UID), "volumes/kubernetes.io~configmap/v/key")
	var took []time.Duration
	for i := range 4 * *rounds {
		cm.Data["key"] = fmt.Sprintf("v%d", i+1)
		start := time.Now()
		if _, err := maps.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if err := appears(file, cm.Data["key"], start.Add(time.Minute)); err != nil {
			return err
		}
		took = append(took, time.Since(start))
	}
	b.add("ConfigMap changed in berth-control -> file in the pod, worst", ms(quantile(took, 1)), "-", "", "<= 500 ms")
	return p.deleteBurst(ctx, 1)
}
