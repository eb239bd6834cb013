package plan

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/podspec"
)

// byteSource returns values from fuzz data, and zeros after its end.
type byteSource []byte

func (d *byteSource) n(sides int) int {
	if len(*d) == 0 {
		return 0
	}
	b := (*d)[0]
	*d = (*d)[1:]
	return int(b) % sides
}

func (d *byteSource) is() bool { return d.n(2) == 1 }

func (d *byteSource) time() time.Time {
	return [...]time.Time{{}, t0, t0.Add(time.Hour), t0.Add(-time.Hour), t0.Add(10 * time.Second)}[d.n(5)]
}

func (d *byteSource) seconds() int64 {
	return [...]int64{0, 1, 30, 1 << 62, -5}[d.n(5)]
}

// decode returns an arbitrary input: pod, observation and memory.
func decode(d byteSource) Input {
	w := fresh(func(p *corev1.Pod) {
		p.Spec.RestartPolicy = [...]corev1.RestartPolicy{"Always", "OnFailure", "Never", ""}[d.n(4)]
		p.Spec.HostNetwork = d.is()
		p.Spec.Containers = nil
		for i := range d.n(3) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, con(names[i]))
			if d.is() {
				p.Spec.InitContainers[i] = sidecar(names[i])
			}
		}
		for i := range d.n(3) {
			p.Spec.Containers = append(p.Spec.Containers, con(names[3+i], image(images[d.n(3)]),
				pulls([...]corev1.PullPolicy{"Always", "IfNotPresent", "Never"}[d.n(3)]), mounts("v")))
		}
		if d.is() {
			ephemeral(con("debug"))(p)
		}
		if d.is() {
			configMapVolume("v", "cm")(p)
		}
		if d.is() {
			s := d.seconds()
			p.Spec.ActiveDeadlineSeconds = &s
		}
		if d.is() {
			s := d.seconds()
			p.Spec.TerminationGracePeriodSeconds = &s
		}
		if d.is() {
			p.Status.Phase = [...]corev1.PodPhase{"", "Pending", "Running", "Failed", "Succeeded"}[d.n(5)]
		}
	})
	in := w.in
	in.Limits.Probing = d.is()
	in.Verdict = Verdict{State: VerdictState(d.n(4)), Reason: "R"}
	in.Refs[Ref{ConfigMap, "cm"}] = Version{Version: "1", Missing: d.is()}
	if d.is() {
		in.Termination = &Termination{Reason: [...]string{"Deleted", "Evicted", "Orphaned"}[d.n(3)],
			Grace: time.Duration(d.n(40)-1) * time.Second, RequestedAt: d.time(), RemovePod: d.is()}
	}
	decodeObserved(&d, &in)
	decodeProgress(&d, &in)
	decodeResources(&d, &in)
	return in
}

var (
	names  = [...]string{"i0", "i1", "i2", "m0", "m1", "m2", "debug", "alien"}
	images = [...]string{"img", "far", "new"}
)

func decodeObserved(d *byteSource, in *Input) {
	in.Observed.HasDirs, in.Observed.HasCgroup, in.Observed.Network.Ready = d.is(), d.is(), d.is()
	for i := range d.n(3) {
		in.Observed.Sandboxes = append(in.Observed.Sandboxes,
			Sandbox{ID: "sb-" + names[i], Ready: d.is(), Attempt: uint32(3 - i), Stopped: d.is()})
	}
	for i := range d.n(8) {
		c := con(names[d.n(len(names))], image(images[d.n(3)]))
		in.Observed.Containers = append(in.Observed.Containers, Container{
			ID: "id-" + string(rune('a'+i)), Name: c.Name, SandboxID: "sb-" + names[d.n(3)],
			State:    ContainerState(1 + d.n(4)),
			Attempt:  uint32(8 - i),
			SpecHash: podspec.ContainerHash(&c), Image: c.Image, StartedAt: d.time(), FinishedAt: d.time(),
			ExitCode: int32(d.n(3)),
		})
	}
	if d.is() {
		in.Observed.Volumes = map[string]VolumeStatus{"v": {Version: "1"}, "gone": {}}
	}
}

func decodeProgress(d *byteSource, in *Input) {
	actions := []Action{
		CreateDirs{}, EnsureCgroup{}, MountVolume{Volume: "v"}, RunSandbox{},
		StopContainer{ID: "id-a", Deadline: d.time()},
		RemoveContainer{ID: "id-b"},
		PullImage{Container: "m0", Image: images[d.n(3)]}, StartContainer{Name: names[d.n(len(names))]},
		StopSandbox{ID: "sb-i0"}, UnmountVolume{Volume: "gone"}, RemoveDirs{},
	}
	for range d.n(5) {
		a := actions[d.n(len(actions))]
		in.InProgress[a.Key()] = a
	}
	for range d.n(5) {
		a := actions[d.n(len(actions))]
		in.Failures[a.Key()] = Failure{At: d.time(), Count: d.n(256) * 1000, Kind: ErrorKind(d.n(11)), Message: "m",
			Action: a}
	}
	for _, k := range in.Observed.Containers {
		if d.is() {
			in.Health[k.ID] = Health{Started: d.is(), Ready: d.is(), Failed: d.is(), FailedProbe: "liveness"}
		}
	}
	if d.is() {
		in.Memory = Memory{
			Phase: [...]corev1.PodPhase{"", "Pending", "Running", "Failed", "Succeeded"}[d.n(5)], StartTime: d.time(),
			FinishedAt: d.time(),
			Restarts: map[string]RestartState{names[d.n(8)]: {Count: d.n(256), NextAttempt: uint32(d.n(9)),
				NotBefore: d.time(),
				CountedID: "id-a", Replacing: "id-b"}},
			Exits: map[string]Container{names[d.n(8)]: {ID: "x", Name: names[3], State: Exited,
				Attempt: uint32(d.n(12))}},
		}
	}
}

// decodeResources adds arbitrary resources to the pod, the observation, the memory and the
// reservation.
func decodeResources(d *byteSource, in *Input) {
	one := func() (r corev1.ResourceRequirements) {
		for _, list := range []*corev1.ResourceList{&r.Requests, &r.Limits} {
			for _, name := range resizable {
				if n := d.n(4); n > 0 {
					if *list == nil {
						*list = corev1.ResourceList{}
					}
					(*list)[name] = *resource.NewQuantity(int64(n), resource.DecimalSI)
				}
			}
		}
		return r
	}
	some := func() (r Resources) {
		if d.is() {
			r = Resources{}
			for range d.n(4) {
				r[append(names[:], PodLevel)[d.n(len(names)+1)]] = one()
			}
		}
		return r
	}
	for _, list := range [][]corev1.Container{in.Pod.Spec.InitContainers, in.Pod.Spec.Containers} {
		for i := range list {
			list[i].Resources = one()
		}
	}
	if d.is() {
		in.Pod.Spec.Resources = new(one())
	}
	in.Reserved = some()
	if d.is() {
		in.Resize = ResizeStatus{Reason: corev1.PodReasonInfeasible, Message: "m"}
	}
	s := &in.Memory.Resources
	s.Allocated, s.Cgroup, in.Observed.CgroupResources, in.Observed.CgroupUncertain = some(), some(), some(), d.is()
	if d.is() {
		s.PodLevel = new(one())
	}
	for range d.n(3) {
		s.Containers = withKey(s.Containers, names[d.n(len(names))], ActualResources{Attempt: uint32(d.n(9)),
			ContainerResources: ContainerResources{one(), one().Limits}, Uncertain: d.is()})
	}
	for _, k := range in.Observed.Containers {
		if d.is() {
			in.Observed.ResizedContainers = withKey(in.Observed.ResizedContainers, k.ID,
				ContainerResources{one(), one().Limits})
		}
	}
}

// FuzzDecide checks invariants with arbitrary input.
func FuzzDecide(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("a pod that runs and has seen much of the world: 0123456789abcdefghijklmnopqrstuvwxyz"))
	for i := range 24 {
		seed := make([]byte, 400)
		for j := range seed {
			seed[j] = byte(i*131 + j*j*7 + j*i)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := decode(data)
		p := Decide(in)
		if twin := decode(data); !reflect.DeepEqual(in, twin) {
			t.Fatal("I1 the input was modified")
		}
		if !reflect.DeepEqual(p, Decide(in)) {
			t.Fatal("I1 two results for one input")
		}
		checkActions(t, in, p)
		for _, cs := range p.Status.ContainerStatuses {
			if s := cs.State; s.Waiting == nil && s.Running == nil && s.Terminated == nil {
				t.Fatalf("%s has no state", cs.Name)
			}
		}
		in.Memory = p.Memory
		if !p.Wake.IsZero() {
			in.Now = p.Wake.Add(-time.Nanosecond)
		} else {
			in.Now = in.Now.Add(1000 * time.Hour)
		}
		if later := Decide(in); p.Empty() && in.Now.After(t0) &&
			(!later.Empty() || !reflect.DeepEqual(later.Status, p.Status)) {
			t.Fatalf("I6 before %v time alone changes the plan: %s", p.Wake, showActions(later))
		}
	})
}

func checkActions(t *testing.T, in Input, p Plan) {
	t.Helper()
	seen := map[ActionKey]bool{}
	for _, a := range p.Actions() {
		k := a.Key()
		if _, busy := in.InProgress[k]; busy || seen[k] {
			t.Fatalf("I2 %s twice", k)
		}
		seen[k] = true
		start, ok := a.(StartContainer)
		for _, c := range in.Observed.Containers {
			if ok && c.Name == start.Name && c.Live() {
				t.Fatalf("I4 %s beside a live instance", show(a))
			}
		}
		if r, ok := a.(StopContainer); ok && r.Grace < 0 {
			t.Fatalf("%s", show(a))
		}
	}
	over := in.Termination != nil || p.Memory.Termination != nil || p.Status.Phase == corev1.PodFailed ||
		p.Status.Phase == corev1.PodSucceeded
	if over && len(p.BuildRun)+len(p.Configure) > 0 {
		t.Fatalf("I3 I8 a terminated pod gets %s", showActions(p))
	}
}
