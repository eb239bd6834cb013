package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"berth/test/simnodes"
	"berth/test/workloadhistory"
)

// setting returns the integer in an environment variable. The defaults are torture with BERTH_TORTURE and normal
// otherwise.
func setting(t *testing.T, name string, normal, torture uint64) uint64 {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	if os.Getenv("BERTH_TORTURE") != "" {
		return torture
	}
	return normal
}

// settleEvery is the number of kills after which all workloads must become complete.
const settleEvery = 10

// TestWorkloadsSurviveKills kills the server during rollouts and Jobs: 4 times, and 200 times with BERTH_TORTURE.
// Simulated nodes acknowledge the pods. The invariants of workloadhistory hold over all changes of the store, and all
// workloads become complete.
func TestWorkloadsSurviveKills(t *testing.T) {
	t.Parallel()
	kills := setting(t, "BERTH_KILLS", 4, 200)
	random := uint64(time.Now().UnixNano() % 1_000_000)
	seed := setting(t, "BERTH_SEED", random, random)
	t.Logf("seed %d: set BERTH_SEED=%d to repeat", seed, seed)
	// The history must be complete: no compaction.
	flags := []string{"--etcd-compaction-interval=24h"}
	p := Launch(t, flags...)
	f := &workloadKills{t: t, p: p, random: rand.New(rand.NewPCG(seed, 0))}
	store := p.etcdClient(t)
	f.connect(true)
	f.createWorkloads()
	for kill := range kills {
		f.editWorkloads(int(kill))
		f.killAfter(1 + f.random.Int64N(50))
		p.Start(t, flags...)
		f.connect(false)
		if err := f.history.Read(t.Context(), store); err != nil {
			t.Fatal(err)
		}
		f.checkHistory()
		if (kill+1)%settleEvery == 0 || kill+1 == kills {
			f.waitUntilComplete()
			f.deleteJobs()
		}
	}
	f.disconnect()
	if err := f.history.Read(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	f.checkHistory()
	t.Logf("%d kills, %d changes, %d pods, %d Jobs, %d edits", kills, f.history.Changes, f.history.Pods, f.history.Jobs,
		f.edits)
	if f.history.Jobs < int(kills) || f.history.Pods < 5*int(kills) {
		t.Errorf("got %d Jobs and %d pods, want more", f.history.Jobs, f.history.Pods)
	}
}

// workloadKills is a server that is killed, with the nodes of the present one of its processes.
type workloadKills struct {
	t       *testing.T
	p       *Process
	random  *rand.Rand
	history workloadhistory.History
	edits   int

	client  kubernetes.Interface
	stop    func() // ends the nodes
	changes atomic.Int64
	moved   chan struct{} // has an element after a change of a pod
}

// connect waits for the server and runs the nodes until disconnect is called.
func (f *workloadKills) connect(register bool) {
	f.t.Helper()
	var err error
	if f.client, err = f.p.WaitReady(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	// A factory that is used again would wait longer after each kill before it lists again.
	factory := informers.NewSharedInformerFactory(f.client, 0)
	names := make([]string, 4)
	for i := range names {
		names[i] = fmt.Sprintf("node-%d", i)
	}
	nodes, err := simnodes.New(f.client, factory.Core().V1().Pods(), simnodes.Options{Names: names, Report: reportPod})
	if err != nil {
		f.t.Fatal(err)
	}
	if register {
		if err := nodes.Register(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
	}
	f.moved = make(chan struct{}, 1)
	count := func(any) {
		f.changes.Add(1)
		select {
		case f.moved <- struct{}{}:
		default:
		}
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: count,
		UpdateFunc: func(any, any) { count(nil) }, DeleteFunc: count}); err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() { nodes.Run(ctx) })
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	f.changes.Store(0)
	f.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		factory.Shutdown()
	})
	f.t.Cleanup(f.stop)
}

func (f *workloadKills) disconnect() { f.stop() }

// killAfter kills the server after a number of changes of pods.
func (f *workloadKills) killAfter(changes int64) {
	f.t.Helper()
	timeout := time.After(4 * time.Minute)
	for f.changes.Load() < changes {
		select {
		case <-f.moved:
		case <-timeout:
			f.t.Fatalf("got %d changes of pods, want %d", f.changes.Load(), changes)
		}
	}
	f.p.Kill(f.t)
	f.disconnect()
}

func (f *workloadKills) checkHistory() {
	f.t.Helper()
	for _, v := range f.history.Violations {
		f.t.Error(v)
	}
	if f.t.Failed() {
		f.t.FailNow()
	}
}

// reportPod reports what the image of a pod says.
func reportPod(pod *corev1.Pod) {
	switch pod.Spec.Containers[0].Image {
	case imageBroken:
		simnodes.ServeUnready(pod)
	case imageJob:
		if failsOnce(pod) {
			simnodes.Fail(pod)
			return
		}
		simnodes.Succeed(pod)
	default:
		simnodes.Serve(pod)
	}
}
